// SPDX-License-Identifier: Apache-2.0
//
// Gated linear attention's step of one token a row on a CUDA device: the recurrence of gated_linear_attention.h, state
// in place or from slot to slot. The state is [H, K, V] as declared. Activations are float32 or bfloat16, decays and
// sums float32, states float32, bfloat16 or float16 (a scale a line would need every value channel at once). Results
// are the same on every run. All pointers are the device's; what they point at is borrowed until the stream has done
// the work.
#pragma once

#include <cstdint>

#include "coluber/dtype.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/cuda_api.h"

namespace coluber {

inline constexpr int64_t kMaxLinearCudaKeyDim = 1024;
// Against the reference in float32, with a float32 state.
inline constexpr Tolerance kGatedLinearAttentionCudaTolerance{1e-6, 1e-5, 1e-5};

struct GatedLinearAttentionCudaArgs {
  DType activations = DType::kBFloat16;  // of q, k, v and o: kFloat32 or kBFloat16
  const void* q = nullptr;               // [R, H, K]
  int64_t q_stride = 0;                  // elements between rows, as every stride here but the heads'
  int64_t q_head_stride = 0;
  const void* k = nullptr;  // [R, H / group, K]
  int64_t k_stride = 0;
  int64_t k_head_stride = 0;
  const void* v = nullptr;  // [R, H / group, V]
  int64_t v_stride = 0;
  int64_t v_head_stride = 0;
  int64_t group = 1;  // heads that share one of k, v and the decay; divides num_heads
  // One of the three.
  const float* slopes = nullptr;     // [H] >= 0: a = exp(-slope)
  const float* log_decay = nullptr;  // [R, H / group] <= 0
  const float* decay = nullptr;      // [R, H / group, K] in [0, 1], heads K apart
  int64_t decay_stride = 0;          // of log_decay or decay
  float scale = 1.0f;
  void* o = nullptr;  // [R, H, V], heads V apart; not an input
  int64_t o_stride = 0;
  StateSlots state;  // (H, K, V)
  // Whether the kernel before it on the stream writes neither states nor slot indices: then states are read while that
  // kernel still runs.
  int32_t overlap = 0;
  int64_t rows = 0;  // at most 65535
  int64_t num_heads = 0;
  int64_t key_dim = 0;  // K in [1, kMaxLinearCudaKeyDim]
  int64_t value_dim = 0;
};

using GatedLinearAttentionCudaFunction = CudaStatus (*)(const GatedLinearAttentionCudaArgs* args, CudaStream stream);
inline constexpr const char* kGatedLinearAttentionUpdateCuda = "coluber_cuda_gated_linear_attention_update";

}  // namespace coluber
