// SPDX-License-Identifier: Apache-2.0
//
// RWKV-5's and -6's recurrence over packed sequences: a matrix a head, whose rows decay each at their own rate and
// whose newest member has a bonus.
//
//   y[v]    = sum_k r[k] * (S[k, v] + u[k] * k[k] * v[v])
//   S[k, v] = w[k] * S[k, v] + k[k] * v[v]
//
// Source: Peng et al. 2024 (arXiv 2404.05892). w lies in (0, 1]; RWKV-5 has one w for all tokens. Rounding does not
// depend on how a prompt was cut. Arguments are borrowed for the call; rows must not share a dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

inline constexpr int64_t kMaxWkvHeadDim = 1024;
// With a float32 state. A 16-bit state adds its own rounding where it is stored.
inline constexpr Tolerance kWkv6Tolerance{1e-6, 1e-5, 1e-5};

struct Wkv6Args {
  const float* r = nullptr;                  // [T, H, N]
  const float* w = nullptr;                  // [T, H, N] w_stride apart
  int64_t w_stride = 0;                      // elements between tokens; 0: [H, N] for all of them
  const float* k = nullptr;                  // [T, H, N]
  const float* v = nullptr;                  // [T, H, N]
  const float* u = nullptr;                  // [H, N]
  float* y = nullptr;                        // [T, H, N]; not an input
  StateSlots state;                          // (H, N, N) key by value
  const int32_t* query_start_loc = nullptr;  // [R+1]; null: row r is token r
  StateExports exports;                      // no bit of a result depends on them
  int64_t rows = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;  // N in [1, kMaxWkvHeadDim]
};

using Wkv6Function = void (*)(const Wkv6Args& args, ThreadPool& pool, Workspace& workspace);
const Operation<Wkv6Function>& wkv6();

}  // namespace coluber
