// SPDX-License-Identifier: Apache-2.0
//
// RWKV-7's step of one token a row on a CUDA device: the recurrence of wkv7.h, state in place or from slot to slot. The
// state is held in the order of its shape [H, N, N], value by key, so a line is a value channel. Activations are
// float32 or bfloat16 but for the decay, which needs its bits near 1; sums are float32, states as in ssd_cuda.h.
// Results are the same on every run. All pointers are the device's; what they point at is borrowed until the stream has
// done the work.
#pragma once

#include <cstdint>

#include "coluber/dtype.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/cuda_api.h"

namespace coluber {

inline constexpr int64_t kMaxWkv7CudaHeadDim = 512;
// Against the reference in float32, with a float32 state.
inline constexpr Tolerance kWkv7CudaTolerance{1e-6, 2e-5, 2e-5};

struct Wkv7CudaArgs {
  DType activations = DType::kBFloat16;  // of r, k, v, a, b and y: kFloat32 or kBFloat16
  const void* r = nullptr;               // [R, H, N], rows H * N apart, as all of them
  const float* w = nullptr;              // the decay itself, in [0, 1]
  const void* k = nullptr;
  const void* v = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;               // may be v
  StateSlots state;                // (H, N, N)
  int64_t scale_offset_bytes = 0;  // of whole numbers: from a slot's start to its scales [H, N]
  // Whether the kernel before it on the stream writes neither states nor slot indices: then states are read while that
  // kernel still runs.
  int32_t overlap = 0;
  int64_t rows = 0;  // at most 65535
  int64_t num_heads = 0;
  int64_t head_dim = 0;  // N in [1, kMaxWkv7CudaHeadDim]
};

using Wkv7CudaFunction = CudaStatus (*)(const Wkv7CudaArgs* args, CudaStream stream);
inline constexpr const char* kWkv7UpdateCuda = "coluber_cuda_wkv7_update";

}  // namespace coluber
