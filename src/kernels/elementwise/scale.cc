// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise/scale.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/op_registry.h"

namespace coluber {
namespace {

constexpr int64_t kGrain = 16384;  // elements worth handing to another thread

void scale_row(const ScaleArgs& args, int64_t row) {
  const float* x = args.x + row * args.x_stride;
  float* y = args.y + row * args.y_stride;
  const float factor = args.row_factor != nullptr ? args.row_factor[row] : args.factor;
  for (int64_t c = 0; c < args.cols; ++c) {
    float value = x[c] * (args.column_factor != nullptr ? args.column_factor[c] : factor);
    if (args.column_bias != nullptr) value += args.column_bias[c];
    y[c] = args.accumulate ? y[c] + value : value;
  }
}

void scale_rows(const ScaleArgs& args, ThreadPool& pool) {
  COLUBER_CHECK(args.rows >= 0 && args.cols > 0, "{} rows of {} columns to scale", args.rows, args.cols);
  pool.parallel_for(args.rows, std::max<int64_t>(1, kGrain / args.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) scale_row(args, row);
  });
}

}  // namespace

const Operation<ScaleFunction>& scale() {
  static const Operation<ScaleFunction> operation("scale", {{"loop", Isa::kRef, scale_rows}});
  return operation;
}

namespace {
const RegisterOperations kEntered(scale);
}

}  // namespace coluber
