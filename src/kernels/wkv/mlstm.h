// SPDX-License-Identifier: Apache-2.0
//
// xLSTM's matrix memory (mLSTM) over packed sequences, by head:
//
//   log_f = log(sigmoid(cap(f)))        log_i = cap(i)            cap(x) = soft_cap * tanh(x / soft_cap)
//   m'    = max(log_f + m, log_i)       f' = e^(log_f + m - m')   i' = e^(log_i - m')
//   C     = f' C + i' k v^T             n  = f' n + i' k
//   y     = q^T C / (max(|q^T n|, e^-m') + eps)                   q scaled by K^-0.5
//
// A fresh row starts with zeros, m among them. Source: Beck et al. 2024 (arXiv 2405.04517), transformers'
// mlstm_recurrent_step_native. Every exponent is relative to m and never above 0 but for e^-m; nothing is summed over a
// chunk, so a prompt of any length is as exact as its steps, and rounding does not depend on how it was cut. n and m
// are float32. Arguments are borrowed for the call; rows must not share a dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

inline constexpr int64_t kMaxMlstmKeyDim = 4096;
// With a float32 C. A 16-bit one adds its own rounding where it is stored.
inline constexpr Tolerance kMlstmTolerance{1e-6, 2e-5, 1e-5};

struct MlstmArgs {
  const float* q = nullptr;  // [T, H, K], tokens qkv_stride apart, as k and v
  const float* k = nullptr;  // [T, H, K]
  const float* v = nullptr;  // [T, H, V]
  int64_t qkv_stride = 0;
  const float* i = nullptr;  // [T, H] before the cap, tokens gate_stride apart, as f
  const float* f = nullptr;
  int64_t gate_stride = 0;
  float soft_cap = 0;  // 0: none
  float eps = 1e-6f;
  float* y = nullptr;                        // [T, H, V], without gaps; not an input
  StateSlots c;                              // (H, K, V)
  StateSlots n, m;                           // (H, K) and (H), float32; the slots of one row are the same
  const int32_t* query_start_loc = nullptr;  // [R+1]; null: row r is token r
  StateExports c_exports, nm_exports;        // the same places; no bit of a result depends on them
  int64_t rows = 0;
  int64_t tokens = 0;  // of all rows
  int64_t num_heads = 0;
  int64_t key_dim = 0;  // K in [1, kMaxMlstmKeyDim]
  int64_t value_dim = 0;
};

using MlstmFunction = void (*)(const MlstmArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<MlstmFunction>& mlstm();

}  // namespace coluber
