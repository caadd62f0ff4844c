// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA kernels of recurrent layers share: elements of activations and states as float32, sixteen bytes at a
// time, and what a launch tells its caller. For .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "coluber/dtype.h"
#include "tensor/cuda_api.h"

namespace coluber {

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float to_float(__half v) { return __half2float(v); }
__device__ inline float to_float(int16_t v) { return static_cast<float>(v); }
__device__ inline float to_float(int8_t v) { return static_cast<float>(v); }
template <typename T>
__device__ T from_float(float v);
template <>
__device__ inline float from_float<float>(float v) {
  return v;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ inline int16_t from_float<int16_t>(float v) {
  return static_cast<int16_t>(__float2int_rn(v));
}
template <>
__device__ inline int8_t from_float<int8_t>(float v) {
  return static_cast<int8_t>(__float2int_rn(v));
}
// Saturates as every 16-bit state does (state_slots.h); NaN stays NaN.
template <>
__device__ inline __half from_float<__half>(float v) {
  return __float2half_rn(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
}

// The elements of 32 bits as floats and back. Whole numbers go by way of floats whose low bits they are: the processor
// converts them at a quarter of the rate at which it adds.
template <typename T>
struct WordOf;
template <>
struct WordOf<float> {
  static constexpr int kCount = 1;
  __device__ static void unpack(uint32_t word, float* to) { to[0] = __uint_as_float(word); }
  __device__ static uint32_t pack(const float* from) { return __float_as_uint(from[0]); }
};
template <>
struct WordOf<__nv_bfloat16> {
  static constexpr int kCount = 2;
  __device__ static void unpack(uint32_t word, float* to) {
    to[0] = __uint_as_float(word << 16);
    to[1] = __uint_as_float(word & 0xffff0000u);
  }
  __device__ static uint32_t pack(const float* from) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(from[0], from[1]);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};
template <>
struct WordOf<__half> {
  static constexpr int kCount = 2;
  __device__ static void unpack(uint32_t word, float* to) {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
    to[0] = pair.x;
    to[1] = pair.y;
  }
  __device__ static uint32_t pack(const float* from) {
    const __half2 pair(from_float<__half>(from[0]), from_float<__half>(from[1]));
    return reinterpret_cast<const uint32_t&>(pair);
  }
};
inline constexpr uint32_t kTwoTo23 = 0x4b000000u;    // as a float
inline constexpr float kRoundToWhole = 12582912.0f;  // 1.5 * 2^23
template <>
struct WordOf<int16_t> {
  static constexpr int kCount = 2;
  __device__ static void unpack(uint32_t word, float* to) {
    const uint32_t raised = word ^ 0x80008000u;
    to[0] = __uint_as_float(__byte_perm(raised, kTwoTo23, 0x7410)) - (8388608.0f + 32768.0f);
    to[1] = __uint_as_float(__byte_perm(raised, kTwoTo23, 0x7432)) - (8388608.0f + 32768.0f);
  }
  __device__ static uint32_t pack(const float* from) {
    return __byte_perm(__float_as_uint(from[0] + kRoundToWhole), __float_as_uint(from[1] + kRoundToWhole), 0x5410);
  }
};
template <>
struct WordOf<int8_t> {
  static constexpr int kCount = 4;
  __device__ static void unpack(uint32_t word, float* to) {
    const uint32_t raised = word ^ 0x80808080u;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
      to[i] = __uint_as_float(__byte_perm(raised, kTwoTo23, 0x7440 | i)) - (8388608.0f + 128.0f);
  }
  __device__ static uint32_t pack(const float* from) {
    uint32_t whole[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) whole[i] = __float_as_uint(from[i] + kRoundToWhole);
    return __byte_perm(__byte_perm(whole[0], whole[1], 0x0040), __byte_perm(whole[2], whole[3], 0x0040), 0x5410);
  }
};

// kCount elements, a multiple of those of 8 bytes, in words of 16 or 8 bytes.
template <typename T, int kCount>
__device__ inline void load_floats(const T* from, float (&to)[kCount]) {
  constexpr int kWords = kCount / WordOf<T>::kCount;
  static_assert(kWords * WordOf<T>::kCount == kCount && (kWords == 2 || kWords % 4 == 0),
                "8 bytes or a multiple of 16");
  uint32_t words[kWords];
  if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      *reinterpret_cast<uint4*>(words + i) = reinterpret_cast<const uint4*>(from)[i / 4];
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) WordOf<T>::unpack(words[i], to + i * WordOf<T>::kCount);
}
template <typename T, int kCount>
__device__ inline void store_floats(T* to, const float (&from)[kCount]) {
  constexpr int kWords = kCount / WordOf<T>::kCount;
  static_assert(kWords * WordOf<T>::kCount == kCount && (kWords == 2 || kWords % 4 == 0),
                "8 bytes or a multiple of 16");
  uint32_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = WordOf<T>::pack(from + i * WordOf<T>::kCount);
  if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(words);
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      reinterpret_cast<uint4*>(to)[i / 4] = *reinterpret_cast<const uint4*>(words + i);
  }
}

// kCount elements: one by one where it is 1.
template <typename T, int kCount>
__device__ inline void load_some(const T* from, float (&to)[kCount]) {
  if constexpr (kCount == 1) {
    to[0] = to_float(*from);
  } else {
    load_floats(from, to);
  }
}
template <typename T, int kCount>
__device__ inline void store_some(T* to, const float (&from)[kCount]) {
  if constexpr (kCount == 1) {
    *to = from_float<T>(from[0]);
  } else {
    store_floats(to, from);
  }
}

// The sum over groups of kLanes neighbouring lanes, in each of them.
template <int kLanes>
__device__ inline float sum_over_lanes(float v) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}
template <int kLanes>
__device__ inline float max_over_lanes(float v) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

// Sums of kValues numbers over groups of kLanes neighbouring lanes, kValues <= kLanes: a lane gets the sum of the value
// `owned_value`. Halving the values with every exchange takes 9 shuffles for 8 values of 32 lanes instead of 40.
template <int kLanes, int kValues>
__device__ inline int owned_value(int lane) {
  return lane / (kLanes / kValues);
}
template <int kLanes, int kValues>
__device__ inline bool owns_value(int lane) {
  return lane % (kLanes / kValues) == 0;
}
template <int kLanes, int kValues, typename Combine>
__device__ inline float combine_to_owners(const float (&values)[kValues], int lane, Combine&& combine) {
  static_assert(kValues <= kLanes && (kValues & (kValues - 1)) == 0);
  float v[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) v[i] = values[i];
  int offset = kLanes / 2;
#pragma unroll
  for (int count = kValues / 2; count > 0; count /= 2, offset /= 2) {
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float sent = upper ? v[i] : v[i + count];
      v[i] = combine(upper ? v[i + count] : v[i], __shfl_xor_sync(0xffffffffu, sent, offset));
    }
  }
#pragma unroll
  for (; offset > 0; offset /= 2) v[0] = combine(v[0], __shfl_xor_sync(0xffffffffu, v[0], offset));
  return v[0];
}
template <int kLanes, int kValues>
__device__ inline float sums_to_owners(const float (&values)[kValues], int lane) {
  return combine_to_owners<kLanes>(values, lane, [](float a, float b) { return a + b; });
}
template <int kLanes, int kValues>
__device__ inline float maxima_to_owners(const float (&values)[kValues], int lane) {
  return combine_to_owners<kLanes>(values, lane, [](float a, float b) { return fmaxf(a, b); });
}
// What the owner of value i has, to all lanes of its group.
template <int kLanes, int kValues>
__device__ inline float from_owner(float own, int i) {
  return __shfl_sync(0xffffffffu, own, i * (kLanes / kValues), kLanes);
}

__device__ inline float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
__device__ inline float silu(float v) { return v / (1.0f + expf(-v)); }
// 2^v for v <= 0, 2 ulp; the library's costs three times as many instructions for results below 2^-126.
__device__ inline float exp2_fast(float v) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
}
// max(v, 0) + log(1 + e), e = exp(-|v|), the logarithm as 2 atanh(e / (2 + e)) by its series: relative to the result it
// is within 3e-7 everywhere, without a branch, at a third of log1pf(expf(v)).
__device__ inline float softplus(float v) {
  const float e = exp2_fast(fabsf(v) * -1.44269504f);
  const float s = __fdividef(e, 2.0f + e), square = s * s;
  float series = fmaf(square, 2.0f / 13, 2.0f / 11);
  series = fmaf(series, square, 2.0f / 9);
  series = fmaf(series, square, 2.0f / 7);
  series = fmaf(series, square, 2.0f / 5);
  series = fmaf(series, square, 2.0f / 3);
  series = fmaf(series, square, 2.0f);
  return fmaf(s, series, fmaxf(v, 0.0f));
}

// A grid launched with `overlap` starts while the one before it on the stream still runs. What that one writes may be
// read after wait_for_grid_before only; without `overlap` the wait is over at once.
__device__ inline void wait_for_grid_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_next_grid_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
template <typename... Parameters, typename... Arguments>
void launch_grid(bool overlap, void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes,
                 cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

inline CudaStatus launch_status() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace coluber
