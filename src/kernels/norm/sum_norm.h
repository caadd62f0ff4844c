// SPDX-License-Identifier: Apache-2.0
//
// Divides groups of neighbouring elements by the sum of their magnitudes, in place:
//
//   x[r, g, c] = x[r, g, c] / max(sum_c |x[r, g, c]|, floor)
//
// for queries and keys whose features are to sum to 1 (DeltaNet's qk_norm "sum"). A group's result depends on nothing
// else.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

// The rounding of a sum over the columns.
inline constexpr Tolerance kSumNormTolerance{.absolute = 0, .relative = 1e-5};

struct SumNormArgs {
  float* x = nullptr;  // [rows, groups, cols], row stride `stride`
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t groups = 0;
  int64_t cols = 0;
  float floor = 0;
};

using SumNormFunction = void (*)(const SumNormArgs& args, ThreadPool& pool);
const Operation<SumNormFunction>& sum_norm();

}  // namespace coluber
