// SPDX-License-Identifier: Apache-2.0
// Products of float32 activations with float32, bfloat16 or float16 weights: each output is one chain of fused
// multiply-adds over ascending k, as gemm.h promises, so that its bits do not depend on the rows beside it, and are the
// processor's. A block has a tile of 64 outputs by 16 rows (few rows: decoding) or 64.
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_tile_cuda.cuh"

namespace coluber {
namespace {

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
__global__ void __launch_bounds__(kTileThreads) multiply(const __grid_constant__ Product p) {
  constexpr int kMine = kRows / 16;
  const int64_t first_row = blockIdx.y * int64_t{kRows}, first_col = blockIdx.x * int64_t{kTileCols};
  const float* rows[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int64_t row = first_row + loaded_row(i);
    rows[i] = row < p.m ? p.a + row * p.lda : nullptr;
  }
  float sum[kMine][4] = {};
  multiply_tile<W, kRows>(rows, static_cast<const W*>(p.w), p.n, p.k, first_col, sum);
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int64_t row = first_row + computed_row<kRows>(i);
    for (int j = 0; j < 4; ++j) {
      const int64_t col = first_col + computed_col(j);
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
  const unsigned cols = blocks_of(p.n, kTileCols);
  if (p.m <= 32)
    multiply<W, 16><<<dim3(cols, blocks_of(p.m, 16)), kTileThreads, 0, stream>>>(p);
  else
    multiply<W, 64><<<dim3(cols, blocks_of(p.m, 64)), kTileThreads, 0, stream>>>(p);
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
