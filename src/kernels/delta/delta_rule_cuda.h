// SPDX-License-Identifier: Apache-2.0
//
// The delta rule's step of one token a row on a CUDA device: the recurrence of delta_rule.h with its gates and norms,
// state in place or from slot to slot, for Gated DeltaNet, Kimi Delta Attention and DeltaNet. The state is held in the
// order of its shape [Hv, Dv, Dk], so a line is a value channel. Activations are float32 or bfloat16, sums float32,
// states as in ssd_cuda.h. Results are the same on every run. All pointers are the device's; what they point at is
// borrowed until the stream has done the work.
#pragma once

#include <cstdint>

#include "coluber/dtype.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/cuda_api.h"

namespace coluber {

inline constexpr int64_t kMaxDeltaCudaKeyDim = 512;
// Against the reference in float64, with a float32 state.
inline constexpr Tolerance kDeltaRuleCudaTolerance{1e-6, 1e-5, 2e-5};

struct DeltaRuleCudaArgs {
  DType activations = DType::kBFloat16;  // of q, k, v, gate, beta and y: kFloat32 or kBFloat16
  const void* q = nullptr;               // [R, Hk, Dk]
  int64_t q_stride = 0;                  // elements between rows, as every stride here
  const void* k = nullptr;               // [R, Hk, Dk]
  int64_t k_stride = 0;
  const void* v = nullptr;  // [R, Hv, Dv]
  int64_t v_stride = 0;
  const void* gate = nullptr;  // [R, Hv, Dk] or [R, Hv]; null: no decay
  int64_t gate_stride = 0;
  int32_t gate_per_channel = 0;      // whether it is [R, Hv, Dk]
  const float* gate_bias = nullptr;  // [Hv, Dk] or [Hv]; null: 0
  const float* gate_rate = nullptr;  // [Hv], exp(A_log)
  float gate_lower_bound = 0;        // 0: none
  const void* beta = nullptr;        // [R, Hv] logits or null
  int64_t beta_stride = 0;
  float beta_scale = 1;
  float norm_eps = 0;  // 0: q and k as they come
  float scale = 1;
  void* y = nullptr;  // [R, Hv, Dv]; may be v
  int64_t y_stride = 0;
  StateSlots state;                // (Hv, Dv, Dk)
  int64_t scale_offset_bytes = 0;  // of whole numbers: from a slot's start to its scales [Hv, Dv]
  // Whether the kernel before it on the stream writes neither states nor slot indices: then states are read while that
  // kernel still runs.
  int32_t overlap = 0;
  int64_t rows = 0;         // at most 65535
  int64_t num_k_heads = 0;  // Hk, a divisor of Hv
  int64_t num_v_heads = 0;
  int64_t key_dim = 0;  // Dk in [1, kMaxDeltaCudaKeyDim]
  int64_t value_dim = 0;
};

using DeltaRuleCudaFunction = CudaStatus (*)(const DeltaRuleCudaArgs* args, CudaStream stream);
inline constexpr const char* kDeltaRuleUpdateCuda = "coluber_cuda_delta_rule_update";

}  // namespace coluber
