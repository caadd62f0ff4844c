// SPDX-License-Identifier: Apache-2.0
//
// How much a state's key channels keep at a token, from a projection x, elementwise over [T, C]:
//
//   log_sigmoid_decay   a = exp(max(log(sigmoid(x)) / normalizer, clamp_min))                           (GLA)
//   bounded_decay       a = lower + (1 - lower) * sigmoid(x)      key = 1 - a, without cancellation     (HGRN2)
//
// In place (a = x) is fine.
#pragma once

#include <cstdint>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

inline constexpr Tolerance kDecayGateTolerance{1e-37, 2e-6, 0};

struct LogSigmoidDecayArgs {
  const float* x = nullptr;  // [count]
  float* a = nullptr;        // [count]
  int64_t count = 0;
  float normalizer = 1.0f;  // above 0
  float clamp_min = -std::numeric_limits<float>::infinity();
};

struct BoundedDecayArgs {
  const float* x = nullptr;      // [T, C]
  const float* lower = nullptr;  // [C] in [0, 1], or null: 0
  float* a = nullptr;            // [T, C]
  float* key = nullptr;          // [T, C]
  int64_t tokens = 0;
  int64_t channels = 0;
};

using LogSigmoidDecayFunction = void (*)(const LogSigmoidDecayArgs& args, ThreadPool& pool);
using BoundedDecayFunction = void (*)(const BoundedDecayArgs& args, ThreadPool& pool);
const Operation<LogSigmoidDecayFunction>& log_sigmoid_decay();
const Operation<BoundedDecayFunction>& bounded_decay();

}  // namespace coluber
