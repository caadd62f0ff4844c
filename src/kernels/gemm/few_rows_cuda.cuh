// SPDX-License-Identifier: Apache-2.0
//
// A block's tile of a product of few rows (steps of one token a sequence), each output one chain of fused multiply-adds
// over ascending k (gemm.h). Such a product should take what reading its weights once takes: so a lane has one output
// of each row, and the weights come to shared memory stages ahead of it, 16 bytes at a time, as they are stored. A lane
// takes 16 bytes of its column at once; columns stand 16 bytes further apart than they are long, so that eight lanes
// read from all banks. 4096 outputs of 8192 bfloat16 weights take 53 us on an H200, where the tile of 64 columns took
// 1018; at the rate of copies the weights alone would take 16 (bench/gpu/README.md). For .cu files only.
#pragma once

#include "kernels/cuda_mma.cuh"
#include "kernels/cuda_operation.cuh"

namespace coluber {

// Four warps of 32 columns; a warp has every fourth row, kMine of them.
template <typename W, int kMine>
struct FewRows {
  static constexpr int kWarps = 4, kThreads = kWarps * 32, kCols = 32, kRows = kWarps * kMine;
  static constexpr int kItems = 16 / sizeof(W);                    // weights of 16 bytes
  static constexpr int kVectors = 16, kDepth = kVectors * kItems;  // of a column in a stage
  static constexpr int kColBytes = kVectors * 16 + 16;             // from column to column
  static constexpr int kWeightBytes = kCols * kColBytes;           // of a stage
  static constexpr int kStageBytes = kWeightBytes + kRows * kDepth * static_cast<int>(sizeof(float));
  static constexpr int kStages = kMine == 4 ? 4 : 6;
  static constexpr int kSharedBytes = kStages * kStageBytes;

  const float* a;  // of the block's first row
  int64_t lda;
  int rows;    // there are, at most kRows
  const W* w;  // of the block's first column; 16 bytes aligned, as every column
  int cols;
  int64_t k;  // a multiple of kItems

  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ void ask(uint32_t stage, int64_t from) const {
    const int vector = static_cast<int>(threadIdx.x) % kVectors;
#pragma unroll
    for (int i = 0; i < kCols * kVectors / kThreads; ++i) {
      const int col = static_cast<int>(threadIdx.x) / kVectors + i * (kThreads / kVectors);
      const int64_t at = from + vector * kItems;
      const bool is_there = col < cols && at < k;
      copy_16_later(stage + col * kColBytes + vector * 16, is_there ? w + col * k + at : w, is_there);
    }
#pragma unroll
    for (int i = 0; i < kRows * kDepth / kThreads; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * kThreads, row = item / kDepth;
      const int64_t at = from + item % kDepth;
      const bool is_there = row < rows && at < k;
      copy_4_later(stage + kWeightBytes + item * 4, is_there ? a + row * lda + at : a, is_there);
    }
    close_copies();
  }

  // The sums of row warp() + i * kWarps at column lane(). All threads of the block take part.
  __device__ void multiply(float (&sum)[kMine]) const {
    extern __shared__ __align__(16) unsigned char few_rows_shared[];
    const uint32_t first = shared_address(few_rows_shared);
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) ask(first + s * kStageBytes, s * kDepth);
    int now = 0, next = kStages - 1;
    for (int64_t from = 0; from < k; from += kDepth) {
      wait_for_copies<kStages - 2>();
      __syncthreads();  // the stage is there, and the one before it has been read by all
      ask(first + next * kStageBytes, from + (kStages - 1) * kDepth);
      if (warp() < rows) add_stage(few_rows_shared + now * kStageBytes, sum);
      now = now + 1 == kStages ? 0 : now + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    wait_for_copies<0>();
  }

  static __device__ void add_stage(const unsigned char* stage, float (&sum)[kMine]) {
    const unsigned char* column = stage + lane() * kColBytes;
    const auto* activations = reinterpret_cast<const float*>(stage + kWeightBytes) + warp() * kDepth;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      alignas(16) W weights[kItems];
      *reinterpret_cast<uint4*>(weights) = *reinterpret_cast<const uint4*>(column + v * 16);
#pragma unroll
      for (int e = 0; e < kItems; e += 4) {
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
          const float4 x = *reinterpret_cast<const float4*>(activations + i * kWarps * kDepth + v * kItems + e);
          sum[i] = fmaf(x.x, to_float(weights[e]), sum[i]);
          sum[i] = fmaf(x.y, to_float(weights[e + 1]), sum[i]);
          sum[i] = fmaf(x.z, to_float(weights[e + 2]), sum[i]);
          sum[i] = fmaf(x.w, to_float(weights[e + 3]), sum[i]);
        }
      }
    }
  }
};

}  // namespace coluber
