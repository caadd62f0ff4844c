// SPDX-License-Identifier: Apache-2.0
// Decode over a long context (bytes of keys and values a second) and prefill (operations of both products a second), on
// all usable cores. Compare with the read bandwidth and the multiply-add rate of kernels/roofline in the same run.
#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/attention/paged_attention.h"

namespace coluber {
namespace {

struct Setup {
  PagedAttentionArgs args;
  std::vector<std::byte> memory;
  std::vector<float> q, out;
  std::vector<int32_t> table, starts, lengths;

  Setup(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t context, int64_t queries, DType dtype) {
    constexpr int64_t kBlock = 16;
    const int64_t pages = (context + kBlock - 1) / kBlock;
    args.kv = {nullptr, 0, kBlock, kv_heads, head_dim, dtype};
    args.kv.page_stride_bytes = 2 * args.kv.plane_bytes();
    memory.resize(static_cast<size_t>((pages + 1) * args.kv.page_stride_bytes));
    args.kv.base = memory.data();
    q.assign(static_cast<size_t>(queries * heads * head_dim), 0.25f);
    out.resize(q.size());
    table.resize(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 1);
    starts = {0, static_cast<int32_t>(queries)};
    lengths = {static_cast<int32_t>(context)};
    args.q = q.data();
    args.out = out.data();
    args.q_stride = args.out_stride = heads * head_dim;
    args.num_tokens = queries;
    args.num_heads = heads;
    args.block_table = {table.data(), 1, pages, pages};
    args.query_start_loc = starts.data();
    args.seq_lens = lengths.data();
    args.num_reqs = 1;
    args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  }
};

void decode(benchmark::State& state, DType dtype) {
  ThreadPool pool(usable_cores());
  Workspace workspace;
  Setup setup(state.range(0), state.range(1), state.range(2), state.range(3), 1, dtype);
  for (auto _ : state) paged_attention()(setup.args, pool, workspace);
  state.SetBytesProcessed(state.iterations() *
                          dtype_bytes(dtype, 2 * state.range(1) * state.range(2) * state.range(3)));
}

void prefill(benchmark::State& state, DType dtype) {
  ThreadPool pool(usable_cores());
  Workspace workspace;
  const int64_t context = state.range(3);
  Setup setup(state.range(0), state.range(1), state.range(2), context, context, dtype);
  for (auto _ : state) paged_attention()(setup.args, pool, workspace);
  const double pairs = static_cast<double>(context) * static_cast<double>(context + 1) / 2;
  state.counters["FLOPS"] = benchmark::Counter(
      4.0 * pairs * static_cast<double>(state.range(0) * state.range(2)) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

// query heads, kv heads, head dim, context
BENCHMARK_CAPTURE(decode, float32, DType::kFloat32)->Args({16, 8, 64, 32768})->Args({32, 8, 128, 16384})->UseRealTime();
BENCHMARK_CAPTURE(decode, bfloat16, DType::kBFloat16)
    ->Args({16, 8, 64, 32768})
    ->Args({32, 8, 128, 16384})
    ->UseRealTime();
BENCHMARK_CAPTURE(decode, int8, DType::kInt8)->Args({16, 8, 64, 32768})->Args({32, 8, 128, 16384})->UseRealTime();
BENCHMARK_CAPTURE(decode, fp8, DType::kFloat8E4M3)->Args({16, 8, 64, 32768})->Args({32, 8, 128, 16384})->UseRealTime();
BENCHMARK_CAPTURE(prefill, float32, DType::kFloat32)->Args({16, 8, 64, 512})->Args({32, 8, 128, 512})->UseRealTime();
BENCHMARK_CAPTURE(prefill, bfloat16, DType::kBFloat16)->Args({16, 8, 64, 2048})->UseRealTime();

}  // namespace
}  // namespace coluber
