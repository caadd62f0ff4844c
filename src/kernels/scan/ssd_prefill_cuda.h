// SPDX-License-Identifier: Apache-2.0
//
// SSD over packed rows of many tokens on a CUDA device: the recurrence of ssd.h by chunks on the tensor cores
// (kernels/decay_chunks_cuda.cuh). Activations are bfloat16, and what the products read is rounded to it; sums, decays
// and the running state are float32, states at rest float32, bfloat16 or float16. A chunk starts at a row's first token
// and after each state that the row leaves on its way, so that no result depends on what else is packed; those states
// change rounding only. Results are the same on every run. Its bits are not those of single steps: what needs them
// takes the scan of ssd.h, which runs on devices too. All pointers are the device's; what they point at is borrowed
// until the stream has done the work.
#pragma once

#include <cstdint>
#include <limits>

#include "coluber/dtype.h"
#include "kernels/state_slots.h"
#include "tensor/cuda_api.h"

namespace coluber {

// Frobenius norm of the error over that of the reference in float64.
inline constexpr double kSsdPrefillOutputError = 6e-3, kSsdPrefillStateError = 4e-3;
// The same of the chunk scan of ssd.h with `allow_bf16`, whose float32 activations are rounded first.
inline constexpr double kSsdRoundedOutputError = 9e-3, kSsdRoundedStateError = 6e-3;

struct SsdPrefillCudaArgs {
  DType activations = DType::kBFloat16;  // of x, b, c and y; no other is computed
  DType dt_type = DType::kBFloat16;      // or kFloat32
  const void* x = nullptr;               // [T, H, P]; heads P apart
  int64_t x_stride = 0;                  // elements between tokens, as every stride here
  const void* dt = nullptr;              // [T, H] before bias and softplus
  int64_t dt_stride = 0;
  const void* b = nullptr;  // [T, G, N]
  int64_t b_stride = 0;
  const void* c = nullptr;  // [T, G, N]
  int64_t c_stride = 0;
  const float* dt_bias = nullptr;  // [H] or null
  float dt_min = 0.0f;
  float dt_max = std::numeric_limits<float>::infinity();
  const float* a = nullptr;  // [H] -exp(A_log)
  const float* d = nullptr;  // [H] or null
  void* y = nullptr;         // [T, H, P]; may be x
  int64_t y_stride = 0;
  StateSlots state;  // (H, P, N); kFloat32, kBFloat16 or kFloat16
  StateExports exports;
  const int32_t* query_start_loc = nullptr;  // [R+1]
  int64_t rows = 0;                          // at most 65535
  int64_t num_heads = 0;
  int64_t head_dim = 0;    // P, a multiple of 8
  int64_t num_groups = 0;  // divides num_heads
  int64_t state_size = 0;  // N, a multiple of 8 up to 128
};

using SsdPrefillCudaFunction = CudaStatus (*)(const SsdPrefillCudaArgs* args, CudaStream stream);
inline constexpr const char* kSsdPrefillCuda = "coluber_cuda_ssd_prefill";
// For the library's other functions; programs ask for it by its name.
extern "C" CudaStatus coluber_cuda_ssd_prefill(const SsdPrefillCudaArgs* args, CudaStream stream);

}  // namespace coluber
