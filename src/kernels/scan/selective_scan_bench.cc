// SPDX-License-Identifier: Apache-2.0
// Mamba-1's scan at published shapes: exponentials/s (its arithmetic limit), and bytes/s of the step's state.
#include "kernels/scan/selective_scan.h"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

namespace coluber {
namespace {

std::vector<float> values(int64_t count, float low, float high) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = uniform(generator);
  return v;
}

void run(benchmark::State& state, int64_t channels, int64_t tokens, bool update, int64_t layers) {
  constexpr int64_t kStateSize = 16;
  ThreadPool pool(static_cast<int>(state.range(0)));
  const std::vector<float> xz = values(tokens * 2 * channels, -1, 1), delta = values(tokens * channels, -4, 0);
  const std::vector<float> bc = values(tokens * 2 * kStateSize, -1, 1), a_log = values(channels * kStateSize, -1, 2);
  const std::vector<float> d = values(channels, -1, 1);
  std::vector<float> a(a_log.size()), y(static_cast<size_t>(tokens * channels));
  prepare_selective_scan_a(a_log.data(), channels, kStateSize, a.data());
  std::vector<float> states(static_cast<size_t>((layers + 1) * channels * kStateSize), 0.1f);
  std::vector<int32_t> slots(static_cast<size_t>(layers));
  for (int64_t i = 0; i < layers; ++i) slots[static_cast<size_t>(i)] = static_cast<int32_t>(i + 1);
  const int32_t loc[2] = {0, static_cast<int32_t>(tokens)};
  SelectiveScanArgs args;
  args.x = xz.data();
  args.z = xz.data() + channels;
  args.x_stride = args.z_stride = 2 * channels;
  args.delta = delta.data();
  args.delta_stride = channels;
  args.a = a.data();
  args.b = bc.data();
  args.c = bc.data() + kStateSize;
  args.b_stride = args.c_stride = 2 * kStateSize;
  args.d = d.data();
  args.y = y.data();
  args.y_stride = channels;
  args.query_start_loc = loc;
  args.rows = 1;
  args.channels = channels;
  args.state_size = kStateSize;
  args.state = {states.data(), DType::kFloat32, channels * kStateSize * 4, slots.data(), slots.data(), 1, nullptr};
  for (auto _ : state) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      args.state.src = args.state.dst = slots.data() + layer;
      (update ? selective_state_update() : selective_scan())(args, pool);
    }
  }
  const double elements = static_cast<double>(layers * tokens * channels * kStateSize);
  state.counters["exp/s"] = benchmark::Counter(elements, benchmark::Counter::kIsIterationInvariantRate);
  if (update)
    state.counters["bytes/s"] = benchmark::Counter(8.0 * elements, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(run, prefill_512_mamba_130m, 1536, 512, false, 1)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, prefill_512_mamba_2_8b, 5120, 512, false, 1)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, step_mamba_130m, 1536, 1, true, 24)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, step_mamba_2_8b, 5120, 1, true, 64)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace coluber
