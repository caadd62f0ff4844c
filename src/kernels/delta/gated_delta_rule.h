// SPDX-License-Identifier: Apache-2.0
//
// The gated delta rule over packed sequences in chunks, and its step of one token a row: a state that first forgets,
// then replaces what it holds under the token's key by the token's value.
//
//   S[h]    = a[t, h] * S[h]                              S is [V, K], a row for each value channel
//   u       = beta[t, h] * (v[t, h] - S[h] k[t, g])       head h reads key head g = h / group
//   S[h]    = S[h] + u k[t, g]^T
//   o[t, h] = scale * S[h] q[t, g]                        the current token included
//
// The factor a <= 1 is one of three: absent (DeltaNet), a number a token and head (Gated DeltaNet), or a number a key
// channel, which scales that column of S (Kimi Delta Attention). Keys are expected at a length of at most 1
// (qk_norm.h), beta in [0, 2]: then nothing grows. Source: Yang et al., Gated Delta Networks (arXiv 2412.06464), whose
// chunks solve (I + A) U = beta (V - K S) with A strictly lower triangular. Logarithms are only ever raised to
// relative, never positive exponents. Chunks start at the row's first token, so only rounding depends on how a prompt
// was cut. Arguments are borrowed for the call; rows must not share a dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

inline constexpr int64_t kMaxDeltaKeyDim = 1024;
// With a float32 state. A 16-bit state adds its own rounding where it is stored.
inline constexpr Tolerance kGatedDeltaRuleTolerance{1e-6, 1e-5, 2e-5};

struct GatedDeltaRuleArgs {
  const float* q = nullptr;  // [T, H / group, K], heads K apart
  int64_t q_stride = 0;      // elements between tokens
  const float* k = nullptr;  // [T, H / group, K], heads K apart
  int64_t k_stride = 0;
  const float* v = nullptr;  // [T, H, V], heads V apart
  int64_t v_stride = 0;
  int64_t group = 1;  // value heads that share a key head; divides num_heads
  // One of the two, or none.
  const float* log_decay = nullptr;          // [T, H] <= 0, heads next to each other: a = exp(log_decay)
  const float* channel_log_decay = nullptr;  // [T, H, K] <= 0, heads K apart
  int64_t decay_stride = 0;                  // elements between tokens of either
  const float* beta = nullptr;               // [T, H], heads next to each other; null: 1
  int64_t beta_stride = 0;
  float scale = 1.0f;
  float* o = nullptr;  // [T, H, V], heads V apart; may not overlap what is read
  int64_t o_stride = 0;
  StateSlots state;                          // (H, V, K)
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  int64_t rows = 0;
  int64_t num_heads = 0;  // H, of values
  int64_t key_dim = 0;    // K in [1, kMaxDeltaKeyDim]
  int64_t value_dim = 0;  // V
  // Tokens of a chunk, 0: the kernel's choice (channel_log_decay has its own); only rounding depends on it.
  int64_t chunk_size = 0;
};

using GatedDeltaRuleFunction = void (*)(const GatedDeltaRuleArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<GatedDeltaRuleFunction>& gated_delta_rule();
const Operation<GatedDeltaRuleFunction>& gated_delta_rule_update();

}  // namespace coluber
