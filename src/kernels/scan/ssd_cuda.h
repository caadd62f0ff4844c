// SPDX-License-Identifier: Apache-2.0
//
// SSD's step of one token a row on a CUDA device: the recurrence of ssd.h, state in place or from slot to slot.
// Activations are float32 or bfloat16, sums float32, states float32, bfloat16, float16, or whole numbers of 16 or 8
// bits with a float32 scale for each row [P] of a head, chosen anew from the row's largest magnitude whenever it is
// written. The state is read and written once; the largest states run at the speed of memory. Results are the same on
// every run. All pointers are the device's; what they point at is borrowed until the stream has done the work.
#pragma once

#include <cstdint>
#include <limits>

#include "coluber/dtype.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/cuda_api.h"

namespace coluber {

inline constexpr int64_t kMaxSsdCudaState = 1024;
// Against the reference in float32, with a float32 state.
inline constexpr Tolerance kSsdCudaTolerance{1e-6, 1e-5, 1e-5};

struct SsdCudaArgs {
  DType activations = DType::kBFloat16;  // of x, b, c, dt and y: kFloat32 or kBFloat16
  const void* x = nullptr;               // [R, H, P]; heads P apart
  int64_t x_stride = 0;                  // elements between rows, as every stride here
  const void* dt = nullptr;              // [R, H] before bias and softplus
  int64_t dt_stride = 0;
  const void* b = nullptr;  // [R, G, N]
  int64_t b_stride = 0;
  const void* c = nullptr;  // [R, G, N]
  int64_t c_stride = 0;
  const float* dt_bias = nullptr;  // [H] or null
  float dt_min = 0.0f;
  float dt_max = std::numeric_limits<float>::infinity();
  const float* a = nullptr;  // [H] -exp(A_log)
  const float* d = nullptr;  // [H] or null
  void* y = nullptr;         // [R, H, P]; may be x
  int64_t y_stride = 0;
  StateSlots state;                // (H, P, N); kFloat32, kBFloat16, kFloat16, kInt16 or kInt8
  int64_t scale_offset_bytes = 0;  // of whole numbers: from a slot's start to its scales [H, P]
  // Whether the kernel before it on the stream writes neither states nor slot indices: then states are read while that
  // kernel still runs.
  int32_t overlap = 0;
  int64_t rows = 0;  // at most 65535
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t num_groups = 0;  // divides num_heads
  int64_t state_size = 0;  // N in [1, kMaxSsdCudaState]
};

using SsdCudaFunction = CudaStatus (*)(const SsdCudaArgs* args, CudaStream stream);
inline constexpr const char* kSsdStateUpdateCuda = "coluber_cuda_ssd_state_update";

extern "C" CudaStatus coluber_cuda_ssd_state_update(const SsdCudaArgs* args, CudaStream stream);

}  // namespace coluber
