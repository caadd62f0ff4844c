// SPDX-License-Identifier: Apache-2.0
//
// Rows of float32 as bfloat16 or float16 and back, eight elements a thread: what the tensor cores take of activations
// that lie in float32 between operations. For .cu files only.
#pragma once

#include "kernels/cuda_operation.cuh"

namespace coluber {

inline constexpr int kNarrowThreads = 256;
inline constexpr int kNarrowItems = 8;  // 16 bytes of the narrow type

__device__ inline void load_items(const float* from, bool aligned, float (&to)[kNarrowItems]) {
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kNarrowItems; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      to[i] = four.x;
      to[i + 1] = four.y;
      to[i + 2] = four.z;
      to[i + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kNarrowItems; ++i) to[i] = from[i];
}

template <typename T>
__device__ inline uint4 pack_items(const float (&from)[kNarrowItems]) {
  return {WordOf<T>::pack(from), WordOf<T>::pack(from + 2), WordOf<T>::pack(from + 4), WordOf<T>::pack(from + 6)};
}

// `to` [rows, cols], rows cols apart, at a multiple of 16 bytes; cols a multiple of kNarrowItems.
template <typename T>
__global__ void __launch_bounds__(kNarrowThreads)
    narrow_rows(const float* from, int64_t stride, int64_t rows, int64_t cols, T* to) {
  const int64_t vectors = cols / kNarrowItems;
  const int64_t at = blockIdx.x * int64_t{kNarrowThreads} + threadIdx.x;
  if (at >= rows * vectors) return;
  const float* source = from + at / vectors * stride + at % vectors * kNarrowItems;
  float items[kNarrowItems];
  load_items(source, reinterpret_cast<uintptr_t>(source) % 16 == 0, items);
  reinterpret_cast<uint4*>(to)[at] = pack_items<T>(items);
}

template <typename T>
CudaStatus launch_narrow_rows(const float* from, int64_t stride, int64_t rows, int64_t cols, T* to,
                              cudaStream_t stream) {
  const unsigned blocks = blocks_of(rows * (cols / kNarrowItems), kNarrowThreads);
  narrow_rows<<<blocks, kNarrowThreads, 0, stream>>>(from, stride, rows, cols, to);
  return launch_status();
}

// Back: `from` rows cols apart, `to` rows `stride` apart.
template <typename T>
__global__ void __launch_bounds__(kNarrowThreads)
    widen_rows(const T* from, int64_t rows, int64_t cols, float* to, int64_t stride) {
  const int64_t vectors = cols / kNarrowItems;
  const int64_t at = blockIdx.x * int64_t{kNarrowThreads} + threadIdx.x;
  if (at >= rows * vectors) return;
  const uint4 words = reinterpret_cast<const uint4*>(from)[at];
  float items[kNarrowItems];
  WordOf<T>::unpack(words.x, items);
  WordOf<T>::unpack(words.y, items + 2);
  WordOf<T>::unpack(words.z, items + 4);
  WordOf<T>::unpack(words.w, items + 6);
  float* target = to + at / vectors * stride + at % vectors * kNarrowItems;
  if (reinterpret_cast<uintptr_t>(target) % 16 == 0) {
    reinterpret_cast<float4*>(target)[0] = {items[0], items[1], items[2], items[3]};
    reinterpret_cast<float4*>(target)[1] = {items[4], items[5], items[6], items[7]};
    return;
  }
#pragma unroll
  for (int i = 0; i < kNarrowItems; ++i) target[i] = items[i];
}

template <typename T>
CudaStatus launch_widen_rows(const T* from, int64_t rows, int64_t cols, float* to, int64_t stride,
                             cudaStream_t stream) {
  const unsigned blocks = blocks_of(rows * (cols / kNarrowItems), kNarrowThreads);
  widen_rows<<<blocks, kNarrowThreads, 0, stream>>>(from, rows, cols, to, stride);
  return launch_status();
}

}  // namespace coluber
