// SPDX-License-Identifier: Apache-2.0
//
// out = silu(gate) * up, silu(x) = x / (1 + exp(-x)): the middle of a gated MLP, dense or of an expert. Element by
// element, so a row's result does not depend on the others; `out` may be `gate` or `up`.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

inline constexpr Tolerance kSiluMulTolerance{.absolute = 1e-30, .relative = 2e-6};

struct SiluMulArgs {
  const float* gate = nullptr;  // [count]
  const float* up = nullptr;    // [count]
  float* out = nullptr;         // [count]
  int64_t count = 0;
};

using SiluMulFunction = void (*)(const SiluMulArgs& args, ThreadPool& pool);
const Operation<SiluMulFunction>& silu_mul();

void silu_mul_ref(const SiluMulArgs& args, ThreadPool& pool);

}  // namespace coluber
