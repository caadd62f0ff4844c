// SPDX-License-Identifier: Apache-2.0
// Lightning attention at MiniMax-Text-01's shape: FLOP/s of the chunk's products, and bytes/s of the step's state.
#include "kernels/linear/lightning_attention.h"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

namespace coluber {
namespace {

void run(benchmark::State& state, int64_t tokens, bool update, int64_t layers) {
  constexpr int64_t kHeads = 64, kDim = 128;
  ThreadPool pool(static_cast<int>(state.range(0)));
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> qkv(static_cast<size_t>(tokens * kHeads * kDim * 3)), slopes(kHeads);
  for (float& x : qkv) x = uniform(generator);
  for (int64_t h = 0; h < kHeads; ++h) slopes[static_cast<size_t>(h)] = 0.9f / static_cast<float>(h + 1);
  std::vector<float> o(static_cast<size_t>(tokens * kHeads * kDim));
  std::vector<float> states(static_cast<size_t>((layers + 1) * kHeads * kDim * kDim), 0.1f);
  std::vector<int32_t> slots(static_cast<size_t>(layers));
  for (int64_t i = 0; i < layers; ++i) slots[static_cast<size_t>(i)] = static_cast<int32_t>(i + 1);
  const int32_t loc[2] = {0, static_cast<int32_t>(tokens)};
  LightningAttentionArgs args;
  args.q = qkv.data();
  args.k = args.q + kDim;
  args.v = args.k + kDim;
  args.token_stride = 3 * kHeads * kDim;
  args.head_stride = 3 * kDim;
  args.slopes = slopes.data();
  args.o = o.data();
  args.o_stride = kHeads * kDim;
  args.query_start_loc = loc;
  args.rows = 1;
  args.num_heads = kHeads;
  args.head_dim = kDim;
  args.state = {states.data(), DType::kFloat32, kHeads * kDim * kDim * 4, slots.data(), slots.data(), 1, nullptr};
  Workspace workspace;
  for (auto _ : state) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      args.state.src = args.state.dst = slots.data() + layer;
      (update ? lightning_attention_update() : lightning_attention())(args, pool, workspace);
    }
  }
  const double head = static_cast<double>(layers * tokens * kHeads * kDim);
  if (update) {
    state.counters["bytes/s"] = benchmark::Counter(8.0 * head * kDim, benchmark::Counter::kIsIterationInvariantRate);
  } else {
    state.counters["FLOP/s"] =
        benchmark::Counter(head * (4.0 * kDim + 2.0 * 64), benchmark::Counter::kIsIterationInvariantRate);
  }
}

BENCHMARK_CAPTURE(run, prefill_512_minimax, 512, false, 1)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, step_minimax, 1, true, 8)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace coluber
