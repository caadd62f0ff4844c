// SPDX-License-Identifier: Apache-2.0
//
// The causal depthwise convolution of causal_conv1d.h on a CUDA device: over packed rows of any lengths, and its step
// of one token a row. Activations are float32 or bfloat16, weights and sums float32, states float32, bfloat16 or
// float16. Sums run over j in ascending order in both, so a prefill, its pieces and single steps agree bit for bit
// where the state keeps the inputs exactly. Results are the same on every run. All pointers are the device's, the
// rows' lengths too: a graph serves any packing of as many tokens and rows. What they point at is borrowed until the
// stream has done the work.
#pragma once

#include <cstdint>

#include "coluber/dtype.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/cuda_api.h"

namespace coluber {

inline constexpr int64_t kMaxConvCudaWidth = 16;
// Against the reference in float64, with float32 activations and state.
inline constexpr Tolerance kCausalConv1dCudaTolerance{1e-6, 2e-6, 1e-6};

struct CausalConv1dCudaArgs {
  DType activations = DType::kBFloat16;  // of x and y: kFloat32 or kBFloat16
  const void* x = nullptr;               // [T, C]
  int64_t x_stride = 0;                  // elements between tokens, as every stride here
  const float* weight = nullptr;         // [W, C]
  const float* bias = nullptr;           // [C] or null
  int32_t silu = 0;                      // whether y passes through it
  void* y = nullptr;                     // [T, C]; may be x in the update, not in the prefill
  int64_t y_stride = 0;
  StateSlots state;                          // (W-1, C), C contiguous; kFloat32, kBFloat16 or kFloat16
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  int64_t tokens = 0;                        // of the prefill: at least query_start_loc[R]; more are left alone
  int64_t rows = 0;                          // at most 65535
  int64_t channels = 0;
  int64_t width = 0;  // W in [2, kMaxConvCudaWidth]
};

using CausalConv1dCudaFunction = CudaStatus (*)(const CausalConv1dCudaArgs* args, CudaStream stream);
inline constexpr const char* kCausalConv1dCuda = "coluber_cuda_causal_conv1d";
inline constexpr const char* kCausalConv1dUpdateCuda = "coluber_cuda_causal_conv1d_update";

}  // namespace coluber
