// SPDX-License-Identifier: Apache-2.0
//
// What the device functions of operations share (tensor/cuda_api.h): how they are exported, and the slots and elements
// of states that a row reads and writes. For .cu files only.
#pragma once

#include "kernels/cuda_math.cuh"
#include "kernels/state_slots.h"

// Exports `function(args, stream)` or, where it needs scratch memory, `function(args, launch)` as operation `name`
// (kernels/op.h).
#define COLUBER_CUDA_OPERATION(name, Args, function)                                                     \
  extern "C" __attribute__((visibility("default"))) coluber::CudaStatus coluber_cuda_run_##name(         \
      const void* args, const coluber::CudaLaunch* launch) {                                             \
    return coluber::run_operation(coluber::function, *static_cast<const coluber::Args*>(args), *launch); \
  }

namespace coluber {

template <typename Args>
CudaStatus run_operation(CudaStatus (*function)(const Args&, cudaStream_t), const Args& args,
                         const CudaLaunch& launch) {
  return function(args, static_cast<cudaStream_t>(launch.stream));
}
template <typename Args>
CudaStatus run_operation(CudaStatus (*function)(const Args&, const CudaLaunch&), const Args& args,
                         const CudaLaunch& launch) {
  return function(args, launch);
}

// The row's slots; no target where it has none, and no source where it starts from zeros.
struct RowSlots {
  const char* source;
  char* target;
};
__device__ inline RowSlots row_slots(const StateSlots& state, int64_t row) {
  const bool fresh = state.has_initial_state != nullptr && state.has_initial_state[row] == 0;
  const int64_t src = state.src[row * state.index_stride], dst = state.dst[row * state.index_stride];
  char* base = static_cast<char*>(state.base);
  if (dst <= 0 || (!fresh && src <= 0)) return {nullptr, nullptr};
  return {fresh ? nullptr : base + src * state.slot_stride_bytes, base + dst * state.slot_stride_bytes};
}
__device__ inline char* slot_at(const StateSlots& state, int64_t slot) {
  return static_cast<char*>(state.base) + slot * state.slot_stride_bytes;
}

// One element of a floating type; zero where there is no source.
__device__ inline float load_element(const void* from, DType dtype, int64_t index) {
  if (from == nullptr) return 0.0f;
  if (dtype == DType::kFloat32) return static_cast<const float*>(from)[index];
  if (dtype == DType::kFloat16) return to_float(static_cast<const __half*>(from)[index]);
  return to_float(static_cast<const __nv_bfloat16*>(from)[index]);
}
__device__ inline void store_element(void* to, DType dtype, int64_t index, float value) {
  if (dtype == DType::kFloat32)
    static_cast<float*>(to)[index] = value;
  else if (dtype == DType::kFloat16)
    static_cast<__half*>(to)[index] = from_float<__half>(value);
  else
    static_cast<__nv_bfloat16*>(to)[index] = from_float<__nv_bfloat16>(value);
}
inline bool is_float_state(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}
inline constexpr const char* kStateOfOtherType = "states of this type do not run on the device (floating types do)";
inline constexpr const char* kTooManyRows = "more than 65535 rows in a step";
inline constexpr int64_t kMostGridRows = 65535;

// The sum over a block of kThreads threads, in each of them, in one order always.
template <int kThreads>
__device__ inline float sum_over_block(float v) {
  __shared__ float sums[kThreads / 32];
  v = sum_over_lanes<32>(v);
  __syncthreads();  // of the sums before
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) sum += sums[i];
  return sum;
}

// The largest over a block of kThreads threads, in each of them; NaN counts as nothing.
template <int kThreads>
__device__ inline float largest_of_block(float v) {
  __shared__ float largest[kThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, static_cast<unsigned>(offset)));
  __syncthreads();  // of the ones before
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = v;
  __syncthreads();
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) most = fmaxf(most, largest[i]);
  return most;
}

inline unsigned blocks_of(int64_t count, int64_t size) { return static_cast<unsigned>((count + size - 1) / size); }

}  // namespace coluber
