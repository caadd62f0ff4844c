// SPDX-License-Identifier: Apache-2.0
//
// y[i] = x[i] / (1 + exp(-x[i])), elementwise: lightning attention's activation of q, k and v. In place (y = x) is
// fine.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

inline constexpr Tolerance kSiluTolerance{1e-37, 1e-6, 0};

struct SiluArgs {
  const float* x = nullptr;  // [count]
  float* y = nullptr;        // [count]
  int64_t count = 0;
};

using SiluFunction = void (*)(const SiluArgs& args, ThreadPool& pool);
const Operation<SiluFunction>& silu();

}  // namespace coluber
