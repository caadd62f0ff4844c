// SPDX-License-Identifier: Apache-2.0
//
// LFM2's gated short convolution over packed sequences, and its step of one token a row, both gates fused.
//
//   u[t, c] = b[t, c] * x[t, c]
//   y[t, c] = c_gate[t, c] * (bias[c] + sum_{j < W} weight[j, c] * u[t - W + 1 + j, c])      no activation
//   state   = the last W-1 values of u, oldest first, [W-1, C]
//
// Source: transformers' Lfm2ShortConv. u before the row's first token comes from the state. Sums run over j in
// ascending order in float32, so that a prefill, its pieces and single steps agree bit for bit where the state is
// float32. Arguments are borrowed for the call; rows must not share a dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/conv/causal_conv1d.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"

namespace coluber {

inline constexpr Tolerance kShortConvTolerance{1e-6, 2e-6, 1e-6};

struct ShortConvArgs {
  const float* b = nullptr;       // [T, C]
  const float* c_gate = nullptr;  // [T, C]
  const float* x = nullptr;       // [T, C]
  int64_t in_stride = 0;          // elements between tokens of b, c_gate and x
  const float* weight = nullptr;  // [W, C]
  const float* bias = nullptr;    // [C] or null
  float* y = nullptr;             // [T, C]; may be b, c_gate or x
  int64_t y_stride = 0;
  StateSlots state;                          // (W-1, C), C contiguous
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t width = 0;  // W in [2, kMaxConvWidth]
};

using ShortConvFunction = void (*)(const ShortConvArgs& args, ThreadPool& pool);
const Operation<ShortConvFunction>& short_conv();
const Operation<ShortConvFunction>& short_conv_update();

}  // namespace coluber
