// SPDX-License-Identifier: Apache-2.0
//
// The real-gated linear recurrent unit of Griffin and RecurrentGemma over packed sequences, and its step of one token a
// row.
//
//   log a[t, c] = log_decay[c] * sigmoid(recurrent_gate[t, c])
//   u[t, c]     = sigmoid(input_gate[t, c]) * x[t, c]
//   h[t, c]     = a[t, c] * h[t-1, c] + sqrt(1 - a[t, c]^2) * u[t, c]         a sequence's first token: h = u
//   y[t, c]     = h[t, c]
//
// Source: De et al. 2024 (arXiv 2402.19427), transformers' recurrent_gemma. `log_decay` is -8 *
// softplus(recurrent_param), prepared once at load, so that no exponent is positive; 1 - a^2 is taken without
// cancellation where a is close to 1. Lanes are channels, the state [C] stays in float32 registers and cache over a
// row's tokens. A row without an initial state begins its sequence. Arguments are borrowed for the call; rows must not
// share a dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"

namespace coluber {

// With a float32 state. A 16-bit state adds its own rounding a call.
inline constexpr Tolerance kRgLruTolerance{1e-6, 2e-5, 1e-5};

struct RgLruArgs {
  const float* x = nullptr;               // [T, C]
  int64_t x_stride = 0;                   // elements between tokens
  const float* input_gate = nullptr;      // [T, C] before the sigmoid
  const float* recurrent_gate = nullptr;  // [T, C] before the sigmoid
  int64_t gate_stride = 0;                // of both
  const float* log_decay = nullptr;       // [C], not positive
  float* y = nullptr;                     // [T, C]; may be x or a gate
  int64_t y_stride = 0;
  StateSlots state;                          // [C]
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  StateExports exports;                      // none in an update; no bit of a result depends on them
  int64_t rows = 0;
  int64_t channels = 0;
};

using RgLruFunction = void (*)(const RgLruArgs& args, ThreadPool& pool);
const Operation<RgLruFunction>& rg_lru();
const Operation<RgLruFunction>& rg_lru_update();

// -8 * softplus(recurrent_param), for a whole layer.
void prepare_rg_lru_decay(const float* recurrent_param, int64_t channels, float* log_decay);

void rg_lru_ref(const RgLruArgs& args, ThreadPool& pool);
void rg_lru_update_ref(const RgLruArgs& args, ThreadPool& pool);

}  // namespace coluber
