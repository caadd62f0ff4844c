// SPDX-License-Identifier: Apache-2.0
//
// Lightning attention and simple gated linear attention over packed rows of many tokens on a CUDA device: the
// recurrence of gated_linear_attention.h for decays of one number a head or a head and token, by chunks on the tensor
// cores (kernels/decay_chunks_cuda.cuh, which says what is rounded). A decay for each key channel is not computed here.
// Activations are bfloat16, states float32, bfloat16 or float16. Results do not depend on what else is packed and are
// the same on every run. All pointers are the device's; what they point at is borrowed until the stream has done the
// work.
#pragma once

#include <cstdint>

#include "coluber/dtype.h"
#include "kernels/state_slots.h"
#include "tensor/cuda_api.h"

namespace coluber {

// Frobenius norm of the error over that of the reference in float64.
inline constexpr double kLinearPrefillOutputError = 6e-3, kLinearPrefillStateError = 4e-3;

struct GatedLinearAttentionPrefillCudaArgs {
  DType activations = DType::kBFloat16;  // of q, k, v and o; no other is computed
  const void* q = nullptr;               // [T, H, K]
  int64_t q_stride = 0;                  // elements between tokens, as every stride here but the heads'
  int64_t q_head_stride = 0;
  const void* k = nullptr;  // [T, H / group, K]
  int64_t k_stride = 0;
  int64_t k_head_stride = 0;
  const void* v = nullptr;  // [T, H / group, V]
  int64_t v_stride = 0;
  int64_t v_head_stride = 0;
  int64_t group = 1;  // heads that share one of k, v and the decay; divides num_heads
  // One of the two.
  const float* slopes = nullptr;     // [H] >= 0: a = exp(-slope)
  const float* log_decay = nullptr;  // [T, H / group] <= 0
  int64_t decay_stride = 0;          // of log_decay
  float scale = 1.0f;
  void* o = nullptr;  // [T, H, V], heads V apart; not an input
  int64_t o_stride = 0;
  StateSlots state;  // (H, K, V)
  StateExports exports;
  const int32_t* query_start_loc = nullptr;  // [R+1]
  int64_t rows = 0;                          // at most 65535
  int64_t num_heads = 0;
  int64_t key_dim = 0;    // K, a multiple of 8 up to 128
  int64_t value_dim = 0;  // V, a multiple of 8
};

using GatedLinearAttentionPrefillCudaFunction = CudaStatus (*)(const GatedLinearAttentionPrefillCudaArgs* args,
                                                               CudaStream stream);
inline constexpr const char* kGatedLinearAttentionPrefillCuda = "coluber_cuda_gated_linear_attention_prefill";

}  // namespace coluber
