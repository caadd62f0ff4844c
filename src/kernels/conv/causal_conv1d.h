// SPDX-License-Identifier: Apache-2.0
//
// Causal depthwise convolution over packed sequences, and its step of one token a row. Used by Mamba, Mamba-2 (over
// x|B|C), the delta rules (over q|k|v) and LFM2's short convolution (no activation).
//
//   y[t, c] = act(bias[c] + sum_{j < W} weight[j, c] * x[t - W + 1 + j, c])      x before the row's first token: the
//   state state   = the last W-1 raw inputs, oldest first, [W-1, C]
//
// Source: mamba_ssm's causal_conv1d_fn and causal_conv1d_update, with a window of W-1 instead of W values. Sums run
// over j in ascending order in float32, so that a prefill, its pieces and single steps agree bit for bit where the
// state keeps the inputs exactly. Arguments are borrowed for the call; rows must not share a dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"

namespace coluber {

inline constexpr int64_t kMaxConvWidth = 16;
inline constexpr Tolerance kCausalConv1dTolerance{1e-6, 2e-6, 1e-6};

struct CausalConv1dArgs {
  const float* x = nullptr;       // [T, C]
  int64_t x_stride = 0;           // elements between tokens
  const float* weight = nullptr;  // [W, C]: transposed once at load, so that lanes are channels
  const float* bias = nullptr;    // [C] or null
  bool silu = false;
  float* y = nullptr;  // [T, C]; may be x in the update, not in the prefill
  int64_t y_stride = 0;
  StateSlots state;                          // (W-1, C), C contiguous
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t width = 0;  // W in [2, kMaxConvWidth]
};

using CausalConv1dFunction = void (*)(const CausalConv1dArgs& args, ThreadPool& pool);
const Operation<CausalConv1dFunction>& causal_conv1d();
const Operation<CausalConv1dFunction>& causal_conv1d_update();

}  // namespace coluber
