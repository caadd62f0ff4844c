// SPDX-License-Identifier: Apache-2.0
//
// Gated linear attention over packed sequences in chunks, and its step of one token a row: a state that forgets by a
// factor and learns one key and value a token.
//
//   S[h]    = a[t, g] * S[h] + k[t, g] v[t, g]^T      S is [K, V]; head h reads head g = h / group of k, v and a
//   o[t, h] = scale * q[t, h]^T S[h]                  the current token included
//
// The factor a <= 1 is one of three: constant a head (lightning attention, retention), a number a token (simple GLA),
// or a number a token and key channel, which scales that row of S (GLA, HGRN2). Source: Yang et al., Gated Linear
// Attention (arXiv 2312.06635). Logarithms are only ever raised to relative, never positive exponents, and factors are
// only multiplied: nothing overflows however fast a state forgets. Chunks start at the row's first token and at
// exports, so only rounding depends on how a prompt was cut. Arguments are borrowed for the call; rows must not share a
// dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

inline constexpr int64_t kMaxLinearKeyDim = 1024;
// With a float32 state. A 16-bit state adds its own rounding where it is stored.
inline constexpr Tolerance kGatedLinearAttentionTolerance{1e-6, 1e-5, 1e-5};

struct GatedLinearAttentionArgs {
  const float* q = nullptr;   // [T, H, K]
  int64_t q_stride = 0;       // elements between tokens
  int64_t q_head_stride = 0;  // elements between heads
  const float* k = nullptr;   // [T, H / group, K]
  int64_t k_stride = 0;
  int64_t k_head_stride = 0;
  const float* v = nullptr;  // [T, H / group, V]
  int64_t v_stride = 0;
  int64_t v_head_stride = 0;
  int64_t group = 1;  // heads that share one of k, v and the decay; divides num_heads
  // One of the three.
  const float* slopes = nullptr;     // [H] >= 0: a = exp(-slope)
  const float* log_decay = nullptr;  // [T, H / group] <= 0, heads next to each other: a = exp(log_decay)
  const float* decay = nullptr;      // [T, H / group, K] in [0, 1], heads K apart
  int64_t decay_stride = 0;          // elements between tokens of log_decay or decay
  float scale = 1.0f;
  float* o = nullptr;  // [T, H, V], heads V apart; may not overlap what is read
  int64_t o_stride = 0;
  StateSlots state;                          // (H, K, V)
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  StateExports exports;                      // not read by the update; a chunk ends at each
  int64_t rows = 0;
  int64_t num_heads = 0;
  int64_t key_dim = 0;    // K in [1, kMaxLinearKeyDim]
  int64_t value_dim = 0;  // V
  // Tokens of a chunk, 0: the kernel's choice (`decay` has its own); only rounding depends on it.
  int64_t chunk_size = 0;
};

using GatedLinearAttentionFunction = void (*)(const GatedLinearAttentionArgs& args, ThreadPool& pool,
                                              Workspace& workspace);
const Operation<GatedLinearAttentionFunction>& gated_linear_attention();
const Operation<GatedLinearAttentionFunction>& gated_linear_attention_update();

}  // namespace coluber
