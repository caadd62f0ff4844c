// SPDX-License-Identifier: Apache-2.0
//
// What surrounds RWKV's recurrences, all of it by token or element:
//
//   token_shift   delta[t] = x[t-1] - x[t], where the token before a row's first is in its state; the state becomes the
//                 row's last token
//   token_mix     out_j[t] = x[t] + delta[t] * (mu_j + dynamic_j[t])                                 for each j
//   wkv_map       y = f(x + bias)
//   head_norm     y[t, h] = (norm(x[t, h]) * weight + bias + (sum_n r * k * r_k) * v) * gate
//                 norm over a head's N values: (x - mean) / sqrt(var + eps)
//   wkv7_prepare  kk = k * k_k / |k * k_k|; a' = -kk; b = kk * a; k' = k * (1 + (a - 1) * k_a)      |.| by head
//                 v' = v + (v_first - v) * v_gate
//
// Source: RWKV-4 to -7 (arXiv 2305.13048, 2404.05892, 2503.14456). A token's values depend on its row alone, never on
// the rows beside. Matrices are row-major without gaps. Arguments are borrowed for the call; rows must not share a dst
// slot, and a row without a slot has a delta of 0.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"

namespace coluber {

inline constexpr int64_t kMostTokenMixes = 6;

inline constexpr Tolerance kTokenShiftTolerance{1e-37, 1e-6, 0};
inline constexpr Tolerance kTokenMixTolerance{1e-37, 1e-6, 1e-6};
inline constexpr Tolerance kWkvMapTolerance{1e-9, 5e-6, 0};
inline constexpr Tolerance kHeadNormTolerance{1e-37, 3e-6, 2e-6};
inline constexpr Tolerance kWkv7PrepareTolerance{1e-37, 3e-6, 1e-6};

struct TokenShiftArgs {
  const float* x = nullptr;                  // [T, D]
  float* delta = nullptr;                    // [T, D]; not x
  StateSlots state;                          // (D)
  const int32_t* query_start_loc = nullptr;  // [R+1]; null: row r is token r
  int64_t rows = 0;
  int64_t cols = 0;  // D
};

struct TokenMixArgs {
  const float* x = nullptr;                    // [T, D]
  const float* delta = nullptr;                // [T, D]
  const float* mu[kMostTokenMixes] = {};       // [D] each
  const float* dynamic[kMostTokenMixes] = {};  // [T, D] each, or null
  float* out[kMostTokenMixes] = {};            // [T, D] each; not x or delta
  int64_t mixes = 0;
  int64_t tokens = 0;
  int64_t cols = 0;
};

enum class WkvMap {
  kTanh,
  kSigmoid,
  kExpNegExp,     // exp(-exp(x)): RWKV-6's decay
  kBoundedDecay,  // exp(-exp(-0.5) * sigmoid(x)): RWKV-7's
};

struct WkvMapArgs {
  WkvMap map = WkvMap::kTanh;
  const float* x = nullptr;     // [T, D]
  const float* bias = nullptr;  // [D] or null
  float* y = nullptr;           // [T, D]; may be x
  int64_t tokens = 0;
  int64_t cols = 0;
};

enum class HeadGate { kNone, kPlain, kSilu, kSigmoid };

struct HeadNormArgs {
  const float* x = nullptr;       // [T, H, N]
  float* y = nullptr;             // [T, H, N]; may be x
  const float* weight = nullptr;  // [H, N]
  const float* bias = nullptr;    // [H, N] or null
  float eps = 1e-5f;
  const float* r = nullptr;  // [T, H, N] or null: no bonus, and k, v, r_k are not read
  const float* k = nullptr;
  const float* v = nullptr;
  const float* r_k = nullptr;   // [H, N]
  const float* gate = nullptr;  // [T, H, N], read unless kNone
  int64_t gate_stride = 0;      // elements between tokens
  HeadGate gate_kind = HeadGate::kNone;
  int64_t tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
};

struct Wkv7PrepareArgs {
  float* k = nullptr;             // [T, H, N] in and out
  float* a = nullptr;             // [T, H, N] in: the rate a; out: b
  float* kk = nullptr;            // [T, H, N] out: a'
  const float* k_k = nullptr;     // [H, N]
  const float* k_a = nullptr;     // [H, N]
  float eps = 0;                  // under the root of |.|, whose square is at least 1e-24
  float* v = nullptr;             // [T, H, N] in and out, untouched without a gate
  const float* v_gate = nullptr;  // [T, H, N] or null
  const float* v_first = nullptr;
  int64_t tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
};

using TokenShiftFunction = void (*)(const TokenShiftArgs& args, ThreadPool& pool);
using TokenMixFunction = void (*)(const TokenMixArgs& args, ThreadPool& pool);
using WkvMapFunction = void (*)(const WkvMapArgs& args, ThreadPool& pool);
using HeadNormFunction = void (*)(const HeadNormArgs& args, ThreadPool& pool);
using Wkv7PrepareFunction = void (*)(const Wkv7PrepareArgs& args, ThreadPool& pool);

const Operation<TokenShiftFunction>& token_shift();
const Operation<TokenMixFunction>& token_mix();
const Operation<WkvMapFunction>& wkv_map();
const Operation<HeadNormFunction>& head_norm();
const Operation<Wkv7PrepareFunction>& wkv7_prepare();

}  // namespace coluber
