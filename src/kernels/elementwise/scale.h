// SPDX-License-Identifier: Apache-2.0
//
// Multiplies rows by numbers, and adds:
//
//   y[r, c] = x[r, c] * (column_factor[c], row_factor[r] or factor) + column_bias[c] (+ y[r, c])
//
// for the multipliers that some families put between layers and into the residual stream, and gates of a number a
// token. Each element rounds after each of its steps, on every processor alike. y may be x.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"

namespace coluber {

struct ScaleArgs {
  const float* x = nullptr;  // [rows, cols], row stride x_stride
  int64_t x_stride = 0;
  float* y = nullptr;  // [rows, cols], row stride y_stride
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  float factor = 1;
  const float* column_factor = nullptr;  // [cols] or null: `row_factor`
  const float* row_factor = nullptr;     // [rows] or null: `factor`
  const float* column_bias = nullptr;    // [cols] or null
  bool accumulate = false;               // add to y instead of overwriting it
};

using ScaleFunction = void (*)(const ScaleArgs& args, ThreadPool& pool);
const Operation<ScaleFunction>& scale();

}  // namespace coluber
