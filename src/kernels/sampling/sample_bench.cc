// SPDX-License-Identifier: Apache-2.0
// One token from a vocabulary of 151,936, on one thread: whole distribution, top-k, top-p and greedy.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "kernels/sampling/sample.h"

namespace coluber {
namespace {

void sample(benchmark::State& state, float temperature, int64_t top_k, float top_p) {
  constexpr int64_t kVocab = 151936;
  std::mt19937_64 generator(1);
  std::normal_distribution<float> normal(0.0f, 2.5f);
  std::vector<float> logits(kVocab);
  for (float& x : logits) x = normal(generator);
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  SampleScratch scratch;
  SampleInput input{.logits = logits.data(), .vocab = kVocab, .params = params};
  for (auto _ : state) {
    benchmark::DoNotOptimize(sample_token(input, scratch).id);
    ++input.position;
  }
}

BENCHMARK_CAPTURE(sample, greedy, 0.0f, 0, 1.0f);
BENCHMARK_CAPTURE(sample, whole, 1.0f, 0, 1.0f);
BENCHMARK_CAPTURE(sample, top_k, 1.0f, 50, 1.0f);
BENCHMARK_CAPTURE(sample, top_p, 0.6f, 0, 0.9f);
BENCHMARK_CAPTURE(sample, top_p_flat, 3.0f, 0, 0.95f);

}  // namespace
}  // namespace coluber
