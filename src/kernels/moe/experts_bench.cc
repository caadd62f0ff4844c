// SPDX-License-Identifier: Apache-2.0
// A layer of 8 experts, 2 a token, of a width whose weights do not fit in the caches: bytes of the weights read a
// second at few tokens, operations a second at many.
#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/moe/experts.h"

namespace coluber {
namespace {

void experts(benchmark::State& state) {
  constexpr int64_t kWidth = 2048, kInner = 4096, kExperts = 8, kTopK = 2;
  const int64_t tokens = state.range(0);
  ThreadPool pool(usable_cores());
  Workspace workspace;
  const std::vector<float> weights(static_cast<size_t>(kWidth * kInner), 0.01f);
  auto pack = [&](int64_t n, int64_t k) {
    return PackedMatrix::pack(TensorView::contiguous(weights.data(), DType::kFloat32, Shape{n, k}), pool);
  };
  std::vector<Expert> layer;
  for (int64_t e = 0; e < kExperts; ++e)
    layer.push_back({pack(kInner, kWidth), pack(kInner, kWidth), pack(kWidth, kInner)});
  std::vector<float> x(static_cast<size_t>(tokens * kWidth), 0.5f), y(x.size());
  std::vector<float> gates(static_cast<size_t>(tokens * kTopK), 0.5f);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    ids.push_back(static_cast<int32_t>(t % (kExperts - 1)));
    ids.push_back(static_cast<int32_t>(t % (kExperts - 1) + 1));
  }
  const ExpertsArgs args{x.data(), y.data(), tokens, layer, ids.data(), gates.data(), kTopK, false, false};
  for (auto _ : state) {
    run_experts()(args, pool, workspace);
    workspace.reset();
  }
  const int64_t parameters = 3 * kWidth * kInner;
  if (tokens == 1) state.SetBytesProcessed(state.iterations() * kTopK * parameters * 4);
  state.counters["FLOPS"] = benchmark::Counter(
      2.0 * static_cast<double>(parameters * kTopK * tokens * state.iterations()), benchmark::Counter::kIsRate);
}

BENCHMARK(experts)->Arg(1)->Arg(256)->UseRealTime();

}  // namespace
}  // namespace coluber
