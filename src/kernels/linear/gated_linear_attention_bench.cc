// SPDX-License-Identifier: Apache-2.0
// Gated linear attention with a decay a key channel, at the shapes of the published models: FLOP/s of the recurrence
// (6 a state element and token, whatever the chunked form spends) in prefill, bytes/s of the step's state.
#include "kernels/linear/gated_linear_attention.h"

#include <benchmark/benchmark.h>

#include <random>
#include <vector>

namespace coluber {
namespace {

struct Sizes {
  int64_t heads, key_dim, value_dim;
};
constexpr Sizes kGla1B{4, 256, 512};
constexpr Sizes kHgrn2{16, 128, 128};

std::vector<float> random_values(int64_t count, float low, float high) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = uniform(generator);
  return values;
}

void run(benchmark::State& state, const Sizes& sizes, int64_t tokens, bool update, int64_t layers) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const int64_t keys = sizes.heads * sizes.key_dim, values = sizes.heads * sizes.value_dim;
  const int64_t elements = keys * sizes.value_dim;
  const std::vector<float> q = random_values(tokens * keys, -1, 1), k = q, v = random_values(tokens * values, -1, 1);
  const std::vector<float> decay = random_values(tokens * keys, 0.9f, 1);
  std::vector<float> o(static_cast<size_t>(tokens * values));
  std::vector<float> states(static_cast<size_t>((layers + 1) * elements), 0.1f);
  std::vector<int32_t> slots(static_cast<size_t>(layers));
  for (int64_t i = 0; i < layers; ++i) slots[static_cast<size_t>(i)] = static_cast<int32_t>(i + 1);
  const int32_t loc[2] = {0, static_cast<int32_t>(tokens)};
  GatedLinearAttentionArgs args;
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.decay = decay.data();
  args.q_stride = args.k_stride = args.decay_stride = keys;
  args.q_head_stride = args.k_head_stride = args.key_dim = sizes.key_dim;
  args.v_stride = args.o_stride = values;
  args.v_head_stride = args.value_dim = sizes.value_dim;
  args.o = o.data();
  args.query_start_loc = loc;
  args.rows = 1;
  args.num_heads = sizes.heads;
  args.state = {states.data(), DType::kFloat32, elements * 4, slots.data(), slots.data(), 1, nullptr};
  Workspace workspace;
  for (auto _ : state) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      args.state.src = args.state.dst = slots.data() + layer;
      (update ? gated_linear_attention_update() : gated_linear_attention())(args, pool, workspace);
    }
  }
  const double work = static_cast<double>(layers * tokens * elements);
  const char* unit = update ? "bytes/s" : "FLOP/s";
  state.counters[unit] = benchmark::Counter((update ? 8.0 : 6.0) * work, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(run, prefill_512_gla, kGla1B, 512, false, 1)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, prefill_512_hgrn2, kHgrn2, 512, false, 1)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(run, step_gla, kGla1B, 1, true, 24)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace coluber
