// SPDX-License-Identifier: Apache-2.0
//
// Lightning attention over packed sequences in chunks, and its step of one token a row: the gated linear attention of
// gated_linear_attention.h with a constant decay a head and square states, run by its kernels.
//
//   S[h]    = exp(-slope[h]) * S[h] + k[t, h] v[t, h]^T       S is [D, D], key by value
//   o[t, h] = q[t, h]^T S[h]                                  the current token included
//
// Source: MiniMax-01 (arXiv 2501.08313), Lightning Attention-2 (arXiv 2401.04658). Decays are only ever raised to
// relative, never positive exponents. No scale on q. Chunks start at the row's first token, so only rounding depends on
// how a prompt was cut. Arguments are borrowed for the call; rows must not share a dst slot.
#pragma once

#include <cstdint>

#include "kernels/linear/gated_linear_attention.h"

namespace coluber {

inline constexpr int64_t kMaxLightningHeadDim = kMaxLinearKeyDim;
// With a float32 state. A 16-bit state adds its own rounding where it is stored.
inline constexpr Tolerance kLightningAttentionTolerance = kGatedLinearAttentionTolerance;

struct LightningAttentionArgs {
  const float* q = nullptr;  // [T, H, D]
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t token_stride = 0;       // elements between tokens of q, k and v
  int64_t head_stride = 0;        // elements between heads of q, k and v
  const float* slopes = nullptr;  // [H] >= 0
  float* o = nullptr;             // [T, H, D], heads D apart; may not overlap q, k and v
  int64_t o_stride = 0;
  StateSlots state;                          // (H, D, D)
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  int64_t rows = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;    // D in [1, kMaxLightningHeadDim]
  int64_t chunk_size = 0;  // tokens of a chunk, 0: the kernel's choice; no result depends on it but for rounding
};

inline GatedLinearAttentionArgs general_form(const LightningAttentionArgs& args) {
  GatedLinearAttentionArgs a;
  a.q = args.q;
  a.k = args.k;
  a.v = args.v;
  a.q_stride = a.k_stride = a.v_stride = args.token_stride;
  a.q_head_stride = a.k_head_stride = a.v_head_stride = args.head_stride;
  a.slopes = args.slopes;
  a.o = args.o;
  a.o_stride = args.o_stride;
  a.state = args.state;
  a.query_start_loc = args.query_start_loc;
  a.rows = args.rows;
  a.num_heads = args.num_heads;
  a.key_dim = a.value_dim = args.head_dim;
  a.chunk_size = args.chunk_size;
  return a;
}

using LightningAttentionFunction = void (*)(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<LightningAttentionFunction>& lightning_attention();
const Operation<LightningAttentionFunction>& lightning_attention_update();

}  // namespace coluber
