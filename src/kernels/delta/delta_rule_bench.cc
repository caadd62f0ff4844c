// SPDX-License-Identifier: Apache-2.0
// The delta rule at the shapes of Qwen3-Next (a decay a head) and Kimi Linear (a decay a key channel): FLOP/s of a
// prefill, of the recurrence's own count, and bytes/s of the step's state.
#include "kernels/delta/delta_rule.h"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

namespace coluber {
namespace {

std::vector<float> uniform_floats(int64_t count, float low, float high) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = uniform(generator);
  return values;
}

void run(benchmark::State& state, int64_t tokens, int64_t layers, bool per_channel) {
  constexpr int64_t kHeads = 32, kDim = 128;
  const int64_t key_heads = per_channel ? kHeads : kHeads / 2, width = 2 * key_heads * kDim + kHeads * kDim;
  const int64_t gates = per_channel ? kHeads * kDim : kHeads;
  ThreadPool pool(static_cast<int>(state.range(0)));
  const std::vector<float> qkv = uniform_floats(tokens * width, -1, 1);
  const std::vector<float> gate = uniform_floats(tokens * gates, -3, 1), beta = uniform_floats(tokens * kHeads, -2, 2);
  const std::vector<float> rate = uniform_floats(kHeads, 0.1f, 1);
  std::vector<float> y(static_cast<size_t>(tokens * kHeads * kDim));
  std::vector<float> states(static_cast<size_t>((layers + 1) * kHeads * kDim * kDim), 0.1f);
  const int32_t loc[2] = {0, static_cast<int32_t>(tokens)};
  int32_t slot = 1;
  DeltaRuleArgs args;
  args.q = qkv.data();
  args.k = args.q + key_heads * kDim;
  args.v = args.k + key_heads * kDim;
  args.q_stride = args.k_stride = args.v_stride = width;
  args.gate = gate.data();
  args.gate_stride = gates;
  args.gate_per_channel = per_channel;
  args.gate_rate = rate.data();
  args.beta = beta.data();
  args.beta_stride = kHeads;
  args.norm_eps = 1e-6f;
  args.scale = 0.088f;
  args.y = y.data();
  args.y_stride = kHeads * kDim;
  args.state = {states.data(), DType::kFloat32, kHeads * kDim * kDim * 4, &slot, &slot, 1, nullptr};
  args.query_start_loc = tokens == 1 ? nullptr : loc;
  args.rows = 1;
  args.num_k_heads = key_heads;
  args.num_v_heads = kHeads;
  args.key_dim = args.value_dim = kDim;
  Workspace workspace;
  for (auto _ : state) {
    for (int64_t layer = 1; layer <= layers; ++layer) {
      slot = static_cast<int32_t>(layer);
      delta_rule()(args, pool, workspace);
    }
  }
  const double elements = static_cast<double>(layers * tokens * kHeads * kDim * kDim);
  const bool step = tokens == 1;
  state.counters[step ? "bytes/s" : "FLOP/s"] =
      benchmark::Counter((step ? 8.0 : 7.0) * elements, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(run, prefill_512_qwen3_next, 512, 1, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, prefill_512_kimi_linear, 512, 1, true)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, step_qwen3_next, 1, 16, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, step_kimi_linear, 1, 16, true)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace coluber
