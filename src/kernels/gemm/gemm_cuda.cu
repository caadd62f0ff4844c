// SPDX-License-Identifier: Apache-2.0
// Products of float32 activations with float32, bfloat16 or float16 weights: each output is one chain of fused
// multiply-adds over ascending k, as gemm.h promises, so that its bits do not depend on the rows beside it, and are the
// processor's. A block has a tile of 64 outputs by 16 rows (few rows: decoding) or 64.
#include "kernels/cuda_operation.cuh"
#include "kernels/gemm/gemm.h"

namespace coluber {
namespace {

constexpr int kThreads = 256, kCols = 64, kDepth = 16;

struct Product {
  const float* a;
  int64_t lda, m;
  const void* w;
  int64_t n, k;
  const float* bias;
  float* c;
  int64_t ldc;
  bool accumulate;
};

template <typename W, int kRows>
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ Product p) {
  constexpr int kMine = kRows / 16;
  __shared__ float a_tile[kDepth][kRows + 1];
  __shared__ float4 w_tile[kDepth][kCols / 4 + 1];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int64_t first_row = blockIdx.y * int64_t{kRows}, first_col = blockIdx.x * int64_t{kCols};
  const W* w = static_cast<const W*>(p.w);
  float sum[kMine][4] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
    const int64_t k = k0 + tx;
#pragma unroll
    for (int i = ty; i < kRows; i += 16)
      a_tile[tx][i] = first_row + i < p.m && k < p.k ? p.a[(first_row + i) * p.lda + k] : 0.0f;
#pragma unroll
    for (int i = ty; i < kCols; i += 16)
      reinterpret_cast<float*>(w_tile[tx])[i] =
          first_col + i < p.n && k < p.k ? to_float(w[(first_col + i) * p.k + k]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const float4 b = w_tile[d][tx];
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const float value = a_tile[d][ty * kMine + i];
        sum[i][0] = fmaf(value, b.x, sum[i][0]);
        sum[i][1] = fmaf(value, b.y, sum[i][1]);
        sum[i][2] = fmaf(value, b.z, sum[i][2]);
        sum[i][3] = fmaf(value, b.w, sum[i][3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int64_t row = first_row + ty * kMine + i;
    for (int j = 0; j < 4; ++j) {
      const int64_t col = first_col + tx * 4 + j;
      if (row >= p.m || col >= p.n) continue;
      float value = sum[i][j];
      if (p.bias != nullptr) value += p.bias[col];
      float& c = p.c[row * p.ldc + col];
      c = p.accumulate ? c + value : value;
    }
  }
}

template <typename W>
CudaStatus launch(const Product& p, cudaStream_t stream) {
  const unsigned cols = blocks_of(p.n, kCols);
  if (p.m <= 32)
    multiply<W, 16><<<dim3(cols, blocks_of(p.m, 16)), kThreads, 0, stream>>>(p);
  else
    multiply<W, 64><<<dim3(cols, blocks_of(p.m, 64)), kThreads, 0, stream>>>(p);
  return launch_status();
}

CudaStatus gemm_on_device(const GemmArgs& args, cudaStream_t stream) {
  if (args.m == 0) return nullptr;
  const PackedMatrix& w = *args.w;
  const Product p{args.a, args.lda, args.m, w.data(), w.n(), w.k(), args.bias, args.c, args.ldc, args.accumulate};
  switch (w.dtype()) {
    case DType::kFloat32:
      return launch<float>(p, stream);
    case DType::kBFloat16:
      return launch<__nv_bfloat16>(p, stream);
    case DType::kFloat16:
      return launch<__half>(p, stream);
    default:
      return "weights of this type do not run on the device (float32, bfloat16 and float16 do)";
  }
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(gemm, GemmArgs, gemm_on_device)
