// SPDX-License-Identifier: Apache-2.0
#include "apps/bench_ops/products.h"

#include "base/dtype.h"
#include "kernels/gemm/gemm.h"
#include "tensor/cuda_step.h"
#include "tensor/workspace.h"

namespace coluber::bench_ops {
namespace {

struct Projection {
  const char* name;
  int64_t n, k;
};
// Nemotron-H-8B's Mamba-2 layers.
constexpr Projection kProjections[] = {{"in_proj", 18560, 4096}, {"out_proj", 4096, 8192}};
constexpr int64_t kWeights = 3;  // together more than the second-level cache holds
constexpr int64_t kFewRows = 256;

Row bench(CudaDevice& device, const Case& c, const Projection& p, bool allow_bf16) {
  const int64_t m = c.batch;
  std::vector<uint16_t> stored(static_cast<size_t>(p.n * p.k));
  for (size_t i = 0; i < stored.size(); ++i)
    stored[i] = float_to_bfloat16(static_cast<float>(i * 2654435761 % 2001) * 1e-3f - 1.0f);
  std::vector<PackedMatrix> weights;
  for (int64_t i = 0; i < kWeights; ++i)
    weights.push_back(
        PackedMatrix::upload(TensorView::contiguous(stored.data(), DType::kBFloat16, Shape{p.n, p.k}), device));
  DeviceArray a(device, m * p.k * 4), out(device, m * p.n * 4);
  a.fill_float32(-1, 1, 1);
  ThreadPool pool(1);
  Workspace workspace(device);
  CudaStep step(device);
  step.begin();
  GemmArgs args;
  args.a = reinterpret_cast<const float*>(a.data());
  args.lda = p.k;
  args.m = m;
  args.c = reinterpret_cast<float*>(out.data());
  args.ldc = p.n;
  args.allow_bf16 = allow_bf16;
  const auto launch = [&](int64_t i) {
    args.w = &weights[static_cast<size_t>(i % kWeights)];
    gemm()(args, Execution{&pool, &workspace, &step});
  };
  launch(0);  // a graph cannot record the memory that the first one takes
  workspace.reset();
  device.synchronize();
  Row row{allow_bf16 ? kProducts : kFloat32Products, p.name, "bfloat16", m, {}, 0, 0, 1};
  row.timing = time_launches(device, m <= kFewRows ? 5 * kWeights : kWeights, launch);
  row.useful_bytes = static_cast<double>(p.n * p.k * 2 + m * p.k * 4 + m * p.n * 4);
  row.useful_flops = 2.0 * static_cast<double>(m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  return row;
}

}  // namespace

std::vector<Row> bench_products(CudaDevice& device, const Case& c, bool allow_bf16) {
  std::vector<Row> rows;
  for (const Projection& projection : kProjections) rows.push_back(bench(device, c, projection, allow_bf16));
  return rows;
}

}  // namespace coluber::bench_ops
