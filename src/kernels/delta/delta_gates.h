// SPDX-License-Identifier: Apache-2.0
//
// What the delta rules make of their gates' projections, elementwise:
//
//   delta_decay   g[t, h, c] = -rate[h] * softplus(x[t, h, c] + bias[h, c])          rate = exp(A_log)
//                 g[t, h, c] = lower * sigmoid(rate[h] * (x[t, h, c] + bias[h, c]))  with a lower bound < 0
//   delta_beta    beta = most * sigmoid(x)                                           most: 1, or 2 (negative eigenvalues)
//
// g is the logarithm of a decay: one a head (C = 1) or one a key channel (C = K). In place is fine.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

// The sum x + bias is rounded to float32 before an exponential: eps times its size.
inline constexpr Tolerance kDeltaGatesTolerance{1e-30, 4e-6, 1e-7};

struct DeltaDecayArgs {
  const float* x = nullptr;  // [T, H, C]
  int64_t x_stride = 0;      // elements between tokens
  float* g = nullptr;        // [T, H, C]
  int64_t g_stride = 0;
  const float* rate = nullptr;  // [H]
  const float* bias = nullptr;  // [H, C] or null
  float lower = 0.0f;           // 0: none
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t channels = 1;
};

struct DeltaBetaArgs {
  const float* x = nullptr;  // [T, H]
  int64_t x_stride = 0;
  float* beta = nullptr;  // [T, H]
  int64_t beta_stride = 0;
  float most = 1.0f;
  int64_t tokens = 0;
  int64_t heads = 0;
};

using DeltaDecayFunction = void (*)(const DeltaDecayArgs& args, ThreadPool& pool);
using DeltaBetaFunction = void (*)(const DeltaBetaArgs& args, ThreadPool& pool);
const Operation<DeltaDecayFunction>& delta_decay();
const Operation<DeltaBetaFunction>& delta_beta();

}  // namespace coluber
