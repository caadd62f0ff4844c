// SPDX-License-Identifier: Apache-2.0
//
// Mamba-1's step of one token a row on a CUDA device: the recurrence of selective_scan.h with the D skip and the z
// gate, state in place or from slot to slot. State and `a` are held in the order of their shape [C, N], so a line is a
// channel. Activations are float32 or bfloat16, sums float32, states as in ssd_cuda.h. Results are the same on every
// run. All pointers are the device's; what they point at is borrowed until the stream has done the work.
#pragma once

#include <cstdint>

#include "coluber/dtype.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/cuda_api.h"

namespace coluber {

inline constexpr int64_t kMaxSelectiveScanCudaState = 256;
// Against the reference in float32, with a float32 state.
inline constexpr Tolerance kSelectiveScanCudaTolerance{1e-6, 2e-5, 1e-5};

struct SelectiveScanCudaArgs {
  DType activations = DType::kBFloat16;  // of x, delta, b, c, z and y: kFloat32 or kBFloat16
  const void* x = nullptr;               // [R, C]
  int64_t x_stride = 0;                  // elements between rows, as every stride here
  const void* delta = nullptr;           // [R, C] before bias and softplus
  int64_t delta_stride = 0;
  const float* delta_bias = nullptr;  // [C] or null
  const float* a = nullptr;           // [C, N], -exp(A_log) * log2(e)
  const void* b = nullptr;            // [R, N]
  int64_t b_stride = 0;
  const void* c = nullptr;  // [R, N]
  int64_t c_stride = 0;
  const float* d = nullptr;  // [C] or null
  const void* z = nullptr;   // [R, C] or null: no gate
  int64_t z_stride = 0;
  void* y = nullptr;  // [R, C]; may be x, delta or z
  int64_t y_stride = 0;
  StateSlots state;                // (C, N)
  int64_t scale_offset_bytes = 0;  // of whole numbers: from a slot's start to its scales [C]
  // Whether the kernel before it on the stream writes neither states nor slot indices: then states are read while that
  // kernel still runs.
  int32_t overlap = 0;
  int64_t rows = 0;  // at most 65535
  int64_t channels = 0;
  int64_t state_size = 0;  // N in [1, kMaxSelectiveScanCudaState]
};

using SelectiveScanCudaFunction = CudaStatus (*)(const SelectiveScanCudaArgs* args, CudaStream stream);
inline constexpr const char* kSelectiveStateUpdateCuda = "coluber_cuda_selective_state_update";

}  // namespace coluber
