// SPDX-License-Identifier: Apache-2.0
//
// RWKV-4's recurrence over packed sequences, by channel: a weighted mean of all values so far, whose weights decay by
// exp(decay) a token and whose newest member has a bonus.
//
//   y   = sigmoid(r) * (num + e^(first + k) v) / (den + e^(first + k))
//   num = e^decay num + e^k v                    den = e^decay den + e^k
//
// num and den are held divided by e^max, max being the largest exponent so far: no exponent above 0 is ever raised. A
// fresh row starts with num = den = 0 and max = -1e38. Source: Peng et al. 2023 (arXiv 2305.13048), transformers'
// rwkv_linear_attention_cpu. The states are float32: a maximum of 16 bits would be another weight. Arguments are
// borrowed for the call; rows must not share a dst slot.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"
#include "kernels/tolerance.h"

namespace coluber {

inline constexpr float kWkv4NoMaximum = -1e38f;
inline constexpr Tolerance kWkv4Tolerance{1e-7, 2e-5, 2e-6};

struct Wkv4Args {
  const float* r = nullptr;                    // [T, D] before the sigmoid
  const float* k = nullptr;                    // [T, D]
  const float* v = nullptr;                    // [T, D]
  const float* decay = nullptr;                // [D] below 0: -exp(time_decay)
  const float* first = nullptr;                // [D] time_first
  float* y = nullptr;                          // [T, D]; may be r, k or v
  StateSlots numerator, denominator, maximum;  // (D) each, float32; the slots of one row are the same
  const int32_t* query_start_loc = nullptr;    // [R+1]; null: row r is token r
  StateExports exports;                        // of all three; no bit of a result depends on them
  int64_t rows = 0;
  int64_t cols = 0;  // D
};

using Wkv4Function = void (*)(const Wkv4Args& args, ThreadPool& pool);
const Operation<Wkv4Function>& wkv4();

}  // namespace coluber
