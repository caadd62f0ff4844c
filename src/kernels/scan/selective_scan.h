// SPDX-License-Identifier: Apache-2.0
//
// Mamba-1's selective scan over packed sequences, and its step of one token a row, with the D skip and the z gate
// fused.
//
//   dt[t, c]   = softplus(delta[t, c] + delta_bias[c])
//   h[c, n]    = exp2(dt[t, c] * a[c, n]) * h[c, n] + dt[t, c] * b[t, n] * x[t, c]
//   y[t, c]    = (sum_n c[t, n] * h[c, n] + d[c] * x[t, c]) * silu(z[t, c])
//
// Source: Gu and Dao 2023 (arXiv 2312.00752), mamba_ssm's selective_scan_fn and selective_state_update. `a` is
// -exp(A_log) * log2(e), prepared once at load. State and `a` are [C, N] in lane order kChannelBlock16 ([C/16][N][16],
// the last block C % 16 wide), so that lanes are channels and no sum runs across lanes. float32 inside, the exponential
// within 1.7e-7. Arguments are borrowed for the call; rows must not share a dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"

namespace coluber {

inline constexpr int64_t kMaxSelectiveScanState = 256;
// With a float32 state. A 16-bit state adds its own rounding a token.
inline constexpr Tolerance kSelectiveScanTolerance{1e-6, 2e-5, 1e-5};

struct SelectiveScanArgs {
  const float* x = nullptr;      // [T, C] after convolution and SiLU
  int64_t x_stride = 0;          // elements between tokens
  const float* delta = nullptr;  // [T, C] before bias and softplus
  int64_t delta_stride = 0;
  const float* delta_bias = nullptr;  // [C] or null
  const float* a = nullptr;           // [C, N] in lane order, negative, times log2(e)
  const float* b = nullptr;           // [T, N]
  int64_t b_stride = 0;
  const float* c = nullptr;  // [T, N]
  int64_t c_stride = 0;
  const float* d = nullptr;  // [C] or null
  const float* z = nullptr;  // [T, C] or null: no gate
  int64_t z_stride = 0;
  float* y = nullptr;  // [T, C]; may be x, delta or z
  int64_t y_stride = 0;
  StateSlots state;                          // (C, N) in lane order
  StateExports exports;                      // of the scan; no bit of a result depends on them
  const int32_t* query_start_loc = nullptr;  // [R+1]; not read by the update, whose row r is token r
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t state_size = 0;  // N in [1, kMaxSelectiveScanState]
};

using SelectiveScanFunction = void (*)(const SelectiveScanArgs& args, ThreadPool& pool);
const Operation<SelectiveScanFunction>& selective_scan();
const Operation<SelectiveScanFunction>& selective_state_update();

// Place of element [channel, n] in lane order kChannelBlock16.
inline int64_t channel_block16_index(int64_t channel, int64_t n, int64_t channels, int64_t state_size) {
  const int64_t first = channel / 16 * 16;
  const int64_t width = channels - first < 16 ? channels - first : 16;
  return first * state_size + n * width + (channel - first);
}
// a_log [C, N] row-major to -exp(a_log) * log2(e) in lane order.
void prepare_selective_scan_a(const float* a_log, int64_t channels, int64_t state_size, float* a);

}  // namespace coluber
