// SPDX-License-Identifier: Apache-2.0
// SSD at published shapes: FLOP/s of the chunk's products, and bytes/s of the step's state.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "kernels/scan/ssd.h"

namespace coluber {
namespace {

struct Shape {
  int64_t heads, head_dim, groups, state_size;
};
constexpr Shape kMamba2_370m{32, 64, 1, 128};
constexpr Shape kMamba2_2_7b{80, 64, 1, 128};
constexpr Shape kNemotronH8b{128, 64, 8, 128};

std::vector<float> values(int64_t count, float low, float high) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = uniform(generator);
  return v;
}

// `layers` states, each in a slot of its own, so that the step meets memory as in a model.
void run(benchmark::State& state, const Shape& s, int64_t tokens, bool update, int64_t layers) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const int64_t inner = s.heads * s.head_dim, width = inner + 2 * s.groups * s.state_size;
  const std::vector<float> xbc = values(tokens * width, -1, 1), dt = values(tokens * s.heads, -4, 0);
  const std::vector<float> a = values(s.heads, -8, -0.1f), d = values(s.heads, -1, 1);
  std::vector<float> y(static_cast<size_t>(tokens * inner));
  std::vector<float> states(static_cast<size_t>((layers + 1) * inner * s.state_size), 0.1f);
  std::vector<int32_t> slots(static_cast<size_t>(layers));
  for (int64_t i = 0; i < layers; ++i) slots[static_cast<size_t>(i)] = static_cast<int32_t>(i + 1);
  const int32_t loc[2] = {0, static_cast<int32_t>(tokens)};
  SsdArgs args;
  args.x = xbc.data();
  args.b = args.x + inner;
  args.c = args.b + s.groups * s.state_size;
  args.x_stride = args.b_stride = args.c_stride = width;
  args.dt = dt.data();
  args.dt_stride = s.heads;
  args.a = a.data();
  args.d = d.data();
  args.y = y.data();
  args.y_stride = inner;
  args.query_start_loc = loc;
  args.rows = 1;
  args.num_heads = s.heads;
  args.head_dim = s.head_dim;
  args.num_groups = s.groups;
  args.state_size = s.state_size;
  args.state = {states.data(), DType::kFloat32, inner * s.state_size * 4, slots.data(), slots.data(), 1, nullptr};
  args.chunk_size = update ? 0 : state.range(1);
  Workspace workspace;
  for (auto _ : state) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      args.state.src = args.state.dst = slots.data() + layer;
      (update ? ssd_state_update() : ssd_chunk_scan())(args, pool, workspace);
    }
  }
  const double q = static_cast<double>(args.chunk_size > 0 ? args.chunk_size : 64), calls = static_cast<double>(layers);
  if (update) {
    state.counters["bytes/s"] = benchmark::Counter(calls * 8.0 * static_cast<double>(inner * s.state_size),
                                                   benchmark::Counter::kIsIterationInvariantRate);
  } else {
    // Half of the tiles on and below the diagonal, per token.
    const double flop = static_cast<double>(tokens) *
                        (q * static_cast<double>(s.state_size * s.groups) + q * static_cast<double>(inner) +
                         4.0 * static_cast<double>(inner * s.state_size));
    state.counters["FLOP/s"] = benchmark::Counter(calls * flop, benchmark::Counter::kIsIterationInvariantRate);
  }
}

BENCHMARK_CAPTURE(run, prefill_512_mamba2_370m, kMamba2_370m, 512, false, 1)
    ->ArgsProduct({{1, 2}, {64, 128}})
    ->UseRealTime();
BENCHMARK_CAPTURE(run, prefill_512_mamba2_2_7b, kMamba2_2_7b, 512, false, 1)
    ->ArgsProduct({{1, 2}, {64}})
    ->UseRealTime();
BENCHMARK_CAPTURE(run, prefill_512_nemotron_h_8b, kNemotronH8b, 512, false, 1)
    ->ArgsProduct({{1, 2}, {64}})
    ->UseRealTime();
BENCHMARK_CAPTURE(run, step_mamba2_370m, kMamba2_370m, 1, true, 48)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, step_mamba2_2_7b, kMamba2_2_7b, 1, true, 64)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace coluber
