// SPDX-License-Identifier: Apache-2.0
//
// LFM2's gated short convolution of short_conv.h on a CUDA device, both gates fused: over packed rows of any lengths,
// and its step of one token a row. Types, order of sums and ownership are those of causal_conv1d_cuda.h; the state
// keeps products, so single steps agree with a prefill bit for bit where it is float32.
#pragma once

#include "kernels/conv/causal_conv1d_cuda.h"

namespace coluber {

inline constexpr Tolerance kShortConvCudaTolerance{1e-6, 2e-6, 1e-6};

struct ShortConvCudaArgs {
  DType activations = DType::kBFloat16;  // of b, c_gate, x and y: kFloat32 or kBFloat16
  const void* b = nullptr;               // [T, C]
  const void* c_gate = nullptr;          // [T, C]
  const void* x = nullptr;               // [T, C]
  int64_t in_stride = 0;                 // elements between tokens of b, c_gate and x
  const float* weight = nullptr;         // [W, C]
  const float* bias = nullptr;           // [C] or null
  void* y = nullptr;                     // [T, C]; may be an input in the update, c_gate alone in the prefill
  int64_t y_stride = 0;
  StateSlots state;                          // (W-1, C), C contiguous; kFloat32, kBFloat16 or kFloat16
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  int64_t tokens = 0;                        // of the prefill: at least query_start_loc[R]; more are left alone
  int64_t rows = 0;                          // at most 65535
  int64_t channels = 0;
  int64_t width = 0;  // W in [2, kMaxConvCudaWidth]
};

using ShortConvCudaFunction = CudaStatus (*)(const ShortConvCudaArgs* args, CudaStream stream);
inline constexpr const char* kShortConvCuda = "coluber_cuda_short_conv";
inline constexpr const char* kShortConvUpdateCuda = "coluber_cuda_short_conv_update";

}  // namespace coluber
