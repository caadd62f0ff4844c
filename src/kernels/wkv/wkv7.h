// SPDX-License-Identifier: Apache-2.0
//
// RWKV-7's recurrence over packed sequences: a matrix a head, multiplied by a diagonal plus a matrix of rank one.
//
//   S[v, k] = w[k] * S[v, k] + (sum_j S[v, j] * a[j]) * b[k] + v[v] * k[k]
//   y[v]    = sum_k S[v, k] * r[k]
//
// Source: Peng et al. 2025 (arXiv 2503.14456); a = -kk, b = kk * rate. The state is held in channel blocks
// (StateLaneOrder::kHeadBlock16): each head's [N, N] as [N/16][N][16], value channels being the lanes, so that both
// sums run along memory. Rounding does not depend on how a prompt was cut. Arguments are borrowed for the call; rows
// must not share a dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "kernels/wkv/wkv6.h"
#include "tensor/workspace.h"

namespace coluber {

// With a float32 state. A 16-bit state adds its own rounding where it is stored.
inline constexpr Tolerance kWkv7Tolerance{1e-6, 2e-5, 2e-5};

struct Wkv7Args {
  const float* r = nullptr;  // [T, H, N], as all of them
  const float* w = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* a = nullptr;
  const float* b = nullptr;
  float* y = nullptr;                        // [T, H, N]; not an input
  StateSlots state;                          // (H, N, N) value by key, in channel blocks
  const int32_t* query_start_loc = nullptr;  // [R+1]; null: row r is token r
  StateExports exports;                      // no bit of a result depends on them
  int64_t rows = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;  // N in [1, kMaxWkvHeadDim]
};

using Wkv7Function = void (*)(const Wkv7Args& args, ThreadPool& pool, Workspace& workspace);
const Operation<Wkv7Function>& wkv7();

}  // namespace coluber
