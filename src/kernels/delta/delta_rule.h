// SPDX-License-Identifier: Apache-2.0
//
// The delta rule with a decaying state, over packed rows of one token or many: Gated DeltaNet (Yang et al., 2024; a
// decay a head), Kimi Delta Attention (Kimi Team, 2025; a decay for each key channel), DeltaNet (none). For value head
// h, key head h / (Hv / Hk), token by token:
//
//   S <- diag(exp(g)) S        u = beta (v - S^T k)        S <- S + k u^T        y = S^T q
//   q, k <- q, k / sqrt(sum of squares + norm_eps), then q <- scale q          norm_eps 0: as they come
//   g = -rate softplus(gate + bias), or with a lower bound L < 0  g = L sigmoid(rate (gate + bias)); no gate: 0
//   beta = beta_scale sigmoid(b), without logits b: beta_scale
//
// One sweep: with k- = exp(g) k and q- = exp(g) q, a token reads S once for S^T k- and S^T q-, then S <- exp(g) S + k
// u^T and y = S^T q- + (k . q) u. A head's state of some value channels stays in the first-level cache over a row's
// tokens; a token is the same arithmetic in a prefill, in pieces of one and alone, so all give the same bits where the
// state is float32. The state's shape is [Hv, Dv, Dk]; it is held as StateLaneOrder::kHeadBlock16, [Dv/16][Dk][16] a
// head. A row without a slot touches no state and its y is 0.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

inline constexpr int64_t kMaxDeltaKeyDim = 512;
// The rounding of sums over Dk, fed back through the state.
inline constexpr Tolerance kDeltaRuleTolerance{1e-6, 1e-5, 2e-5};

struct DeltaRuleArgs {
  const float* q = nullptr;  // [T, Hk, Dk], token stride q_stride
  int64_t q_stride = 0;
  const float* k = nullptr;  // [T, Hk, Dk], token stride k_stride
  int64_t k_stride = 0;
  const float* v = nullptr;  // [T, Hv, Dv], token stride v_stride
  int64_t v_stride = 0;
  const float* gate = nullptr;  // [T, Hv, Dk] or [T, Hv], token stride gate_stride; null: no decay
  int64_t gate_stride = 0;
  bool gate_per_channel = false;
  const float* gate_bias = nullptr;  // [Hv, Dk] or [Hv]; null: 0
  const float* gate_rate = nullptr;  // [Hv], exp(A_log)
  float gate_lower_bound = 0;        // 0: none
  const float* beta = nullptr;       // [T, Hv] logits, token stride beta_stride, or null
  int64_t beta_stride = 0;
  float beta_scale = 1;
  float norm_eps = 0;
  float scale = 1;
  float* y = nullptr;  // [T, Hv, Dv], token stride y_stride
  int64_t y_stride = 0;
  StateSlots state;
  StateExports exports;                      // no bit of a result depends on them
  const int32_t* query_start_loc = nullptr;  // [R+1]; null: row r is token r
  int64_t rows = 0;
  int64_t num_k_heads = 0;  // Hk, a divisor of Hv
  int64_t num_v_heads = 0;  // Hv
  int64_t key_dim = 0;      // Dk in [1, kMaxDeltaKeyDim]
  int64_t value_dim = 0;    // Dv
};

using DeltaRuleFunction = void (*)(const DeltaRuleArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<DeltaRuleFunction>& delta_rule();

// Throws Error(kInternal) where sizes do not fit together.
void check_delta_rule(const DeltaRuleArgs& args);

void delta_rule_ref(const DeltaRuleArgs& args, ThreadPool& pool, Workspace& workspace);

// Where element (value channel, key channel) of a head's state lies.
constexpr int64_t delta_state_index(int64_t value, int64_t key, int64_t value_dim, int64_t key_dim) {
  const int64_t first = value / 16 * 16, width = value_dim - first < 16 ? value_dim - first : 16;
  return first * key_dim + key * width + (value - first);
}

}  // namespace coluber
