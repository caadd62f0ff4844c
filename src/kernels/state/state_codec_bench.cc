// SPDX-License-Identifier: Apache-2.0
// Bytes of codes and float32 values that move a second, on all usable cores, for the states of one layer. Compare with
// the read bandwidth of kernels/roofline in the same run.
#include <benchmark/benchmark.h>

#include <numeric>
#include <vector>

#include "base/dtype.h"
#include "kernels/state/state_codec.h"

namespace coluber {
namespace {

void run(benchmark::State& state, const Operation<StateCodecFunction>& operation, DType dtype) {
  ThreadPool pool(usable_cores());
  StateCodecArgs args;
  args.rows = state.range(0);
  args.outer = state.range(1);
  args.channels = state.range(2);
  args.inner = state.range(3);
  args.lanes = true;
  const int64_t scales = args.outer * args.channels, code_bytes = dtype_bytes(dtype, args.elements());
  const int64_t stride = (code_bytes + 4 * scales + 127) / 128 * 128;
  std::vector<std::byte> slots(static_cast<size_t>((args.rows + 1) * stride));
  std::vector<float> values(static_cast<size_t>(args.rows * args.elements()), 0.25f);
  std::vector<int32_t> ids(static_cast<size_t>(args.rows));
  std::iota(ids.begin(), ids.end(), 1);
  args.codes = {slots.data(), dtype, stride, ids.data(), ids.data(), 1, nullptr};
  args.scales = slots.data() + code_bytes;
  args.values = values.data();
  for (auto _ : state) operation(args, pool);
  state.SetBytesProcessed(state.iterations() * args.rows * (code_bytes + 4 * scales + 4 * args.elements()));
}

void pack(benchmark::State& state, DType dtype) { run(state, pack_states(), dtype); }
void unpack(benchmark::State& state, DType dtype) { run(state, unpack_states(), dtype); }

// rows, heads, channels of a head, numbers of a channel: Nemotron-H-8B, Falcon-H1-7B
void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({1, 128, 64, 128})->Args({16, 128, 64, 128})->Args({16, 24, 128, 256})->UseRealTime();
}
BENCHMARK_CAPTURE(pack, int16, DType::kInt16)->Apply(sizes);
BENCHMARK_CAPTURE(pack, int8, DType::kInt8)->Apply(sizes);
BENCHMARK_CAPTURE(unpack, int16, DType::kInt16)->Apply(sizes);
BENCHMARK_CAPTURE(unpack, int8, DType::kInt8)->Apply(sizes);

}  // namespace
}  // namespace coluber
