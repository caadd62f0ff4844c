// SPDX-License-Identifier: Apache-2.0
// RWKV-6's and -7's recurrences at the shape of 2.9B models (40 heads of 64): FLOP/s of a prompt, and bytes/s of the
// step's state over more layers than the caches hold.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "kernels/wkv/wkv6.h"
#include "kernels/wkv/wkv7.h"

namespace coluber {
namespace {

constexpr int64_t kHeads = 40, kDim = 64, kWidth = kHeads * kDim;

std::vector<float> uniform(int64_t count, float low, float high, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> distribution(low, high);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = distribution(generator);
  return values;
}

struct Problem {
  int64_t tokens, layers;
  std::vector<float> r, w, k, v, a, b, y, states;
  std::vector<int32_t> slots;
  int32_t loc[2];

  Problem(int64_t t, int64_t l)
      : tokens(t),
        layers(l),
        r(uniform(t * kWidth, -1, 1, 1)),
        w(uniform(t * kWidth, 0.6f, 1, 2)),
        k(uniform(t * kWidth, -0.1f, 0.1f, 3)),
        v(uniform(t * kWidth, -1, 1, 4)),
        a(uniform(t * kWidth, -0.1f, 0.1f, 5)),
        b(uniform(t * kWidth, -0.1f, 0.1f, 6)),
        y(static_cast<size_t>(t * kWidth)),
        states(static_cast<size_t>((l + 1) * kWidth * kDim), 0.1f),
        loc{0, static_cast<int32_t>(t)} {
    for (int64_t i = 1; i <= l; ++i) slots.push_back(static_cast<int32_t>(i));
  }
  StateSlots state(int64_t layer) {
    const int32_t* slot = slots.data() + layer;
    return {states.data(), DType::kFloat32, kWidth * kDim * 4, slot, slot, 1, nullptr};
  }
  const int32_t* starts() const { return tokens == 1 ? nullptr : loc; }
};

void count(benchmark::State& state, const Problem& p, double flops_a_cell) {
  const double cells = static_cast<double>(p.layers * p.tokens * kWidth * kDim);
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  if (p.tokens == 1)
    state.counters["bytes/s"] = benchmark::Counter(8.0 * cells, rate);
  else
    state.counters["FLOP/s"] = benchmark::Counter(flops_a_cell * cells, rate);
}

void run_wkv6(benchmark::State& state, int64_t tokens, int64_t layers) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  Problem p(tokens, layers);
  Workspace workspace;
  for (auto _ : state) {
    for (int64_t layer = 0; layer < layers; ++layer)
      wkv6()(Wkv6Args{p.r.data(),
                      p.w.data(),
                      kWidth,
                      p.k.data(),
                      p.v.data(),
                      p.a.data(),
                      p.y.data(),
                      p.state(layer),
                      p.starts(),
                      {},
                      1,
                      kHeads,
                      kDim},
             pool, workspace);
  }
  count(state, p, 5.0);
}

void run_wkv7(benchmark::State& state, int64_t tokens, int64_t layers) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  Problem p(tokens, layers);
  Workspace workspace;
  for (auto _ : state) {
    for (int64_t layer = 0; layer < layers; ++layer)
      wkv7()(Wkv7Args{p.r.data(),
                      p.w.data(),
                      p.k.data(),
                      p.v.data(),
                      p.a.data(),
                      p.b.data(),
                      p.y.data(),
                      p.state(layer),
                      p.starts(),
                      {},
                      1,
                      kHeads,
                      kDim},
             pool, workspace);
  }
  count(state, p, 9.0);
}

BENCHMARK_CAPTURE(run_wkv6, prefill_512, 512, 1)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run_wkv6, step, 1, 64)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run_wkv7, prefill_512, 512, 1)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run_wkv7, step, 1, 64)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace coluber
