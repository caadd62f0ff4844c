// SPDX-License-Identifier: Apache-2.0
//
// A block's tile of a product of float32 rows with a weight's rows: kTileCols outputs by kRows rows, each output one
// chain of fused multiply-adds over ascending k (gemm.h). For .cu files only.
#pragma once

#include "kernels/cuda_operation.cuh"

namespace coluber {

inline constexpr int kTileThreads = 256, kTileCols = 64;

// A thread loads the tile's rows loaded_row(i) and computes rows computed_row<kRows>(i), i below kRows / 16, at the
// columns computed_col(j), j below 4.
__device__ inline int loaded_row(int i) { return static_cast<int>(threadIdx.x) / 16 + i * 16; }
template <int kRows>
__device__ inline int computed_row(int i) {
  return static_cast<int>(threadIdx.x) / 16 * (kRows / 16) + i;
}
__device__ inline int computed_col(int j) { return static_cast<int>(threadIdx.x) % 16 * 4 + j; }

// `rows`: those that this thread loads, [K] each; null: zeros. w [N, K]. All threads of the block take part.
template <typename W, int kRows>
__device__ inline void multiply_tile(const float* const (&rows)[kRows / 16], const W* w, int64_t n, int64_t k,
                                     int64_t first_col, float (&sum)[kRows / 16][4]) {
  constexpr int kDepth = 16, kMine = kRows / 16;
  __shared__ float a_tile[kDepth][kRows + 1];
  __shared__ float4 w_tile[kDepth][kTileCols / 4 + 1];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
    const int64_t at = k0 + tx;
#pragma unroll
    for (int i = 0; i < kMine; ++i) a_tile[tx][loaded_row(i)] = rows[i] != nullptr && at < k ? rows[i][at] : 0.0f;
#pragma unroll
    for (int i = ty; i < kTileCols; i += 16)
      reinterpret_cast<float*>(w_tile[tx])[i] =
          first_col + i < n && at < k ? to_float(w[(first_col + i) * k + at]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const float4 b = w_tile[d][tx];
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const float value = a_tile[d][computed_row<kRows>(i)];
        sum[i][0] = fmaf(value, b.x, sum[i][0]);
        sum[i][1] = fmaf(value, b.y, sum[i][1]);
        sum[i][2] = fmaf(value, b.z, sum[i][2]);
        sum[i][3] = fmaf(value, b.w, sum[i][3]);
      }
    }
    __syncthreads();
  }
}

}  // namespace coluber
