// SPDX-License-Identifier: Apache-2.0
// The RG-LRU at RecurrentGemma-2B's width: channel steps a second of a prefill, bytes a second of steps of one token.
#include "kernels/rg_lru/rg_lru.h"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

namespace coluber {
namespace {

void run(benchmark::State& state, int64_t tokens, int64_t rows) {
  constexpr int64_t kChannels = 2560;
  const bool update = rows > 1;
  ThreadPool pool(static_cast<int>(state.range(0)));
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> inputs(static_cast<size_t>(tokens * 3 * kChannels)), y(static_cast<size_t>(tokens * kChannels));
  for (float& x : inputs) x = uniform(generator);
  const std::vector<float> decay(kChannels, -0.1f);
  std::vector<float> states(static_cast<size_t>((rows + 1) * kChannels), 0.1f);
  std::vector<int32_t> slots;
  for (int64_t r = 1; r <= rows; ++r) slots.push_back(static_cast<int32_t>(r));
  const int32_t starts[2] = {0, static_cast<int32_t>(tokens)};
  RgLruArgs args;
  args.x = inputs.data();
  args.input_gate = args.x + tokens * kChannels;
  args.recurrent_gate = args.input_gate + tokens * kChannels;
  args.x_stride = args.gate_stride = args.y_stride = args.channels = kChannels;
  args.log_decay = decay.data();
  args.y = y.data();
  args.state = {states.data(), DType::kFloat32, kChannels * 4, slots.data(), slots.data(), 1, nullptr};
  args.query_start_loc = starts;
  args.rows = rows;
  for (auto _ : state) (update ? rg_lru_update() : rg_lru())(args, pool);
  const auto steps = static_cast<double>(tokens * kChannels);
  state.counters["steps/s"] = benchmark::Counter(steps, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["bytes/s"] =
      benchmark::Counter(steps * (update ? 24 : 16), benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(run, prefill_512, 512, 1)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, step_of_64_rows, 64, 64)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace coluber
