// SPDX-License-Identifier: Apache-2.0
// The causal convolution at the widths of Mamba-130m, Mamba-2-370m and LFM2: bytes/s of inputs and outputs.
#include "kernels/conv/causal_conv1d.h"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

namespace coluber {
namespace {

void run(benchmark::State& state, int64_t channels, int64_t width, bool silu, int64_t tokens, bool update) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const int64_t x_stride = 2 * channels;
  std::vector<float> x(static_cast<size_t>(tokens * x_stride)), weight(static_cast<size_t>(channels * width));
  for (float& value : x) value = uniform(generator);
  for (float& value : weight) value = uniform(generator);
  std::vector<float> y(static_cast<size_t>(tokens * channels)), states(static_cast<size_t>(2 * (width - 1) * channels));
  const int32_t slot = 1, loc[2] = {0, static_cast<int32_t>(tokens)};
  CausalConv1dArgs args;
  args.x = x.data();
  args.x_stride = x_stride;
  args.weight = weight.data();
  args.silu = silu;
  args.y = y.data();
  args.y_stride = channels;
  args.state = {states.data(), DType::kFloat32, (width - 1) * channels * 4, &slot, &slot, 1, nullptr};
  args.query_start_loc = loc;
  args.rows = 1;
  args.channels = channels;
  args.width = width;
  for (auto _ : state) (update ? causal_conv1d_update() : causal_conv1d())(args, pool);
  state.counters["bytes/s"] =
      benchmark::Counter(static_cast<double>(8 * tokens * channels), benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(run, prefill_512_mamba_130m, 1536, 4, true, 512, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, prefill_512_mamba2_370m, 2304, 4, true, 512, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, prefill_512_lfm2_350m, 1024, 3, false, 512, false)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, step_mamba2_370m, 2304, 4, true, 1, true)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace coluber
