// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/sum_norm.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/op_registry.h"

namespace coluber {
namespace {

constexpr int64_t kGrain = 16384;  // elements worth handing to another thread

void norm_row(const SumNormArgs& args, int64_t row) {
  float* group = args.x + row * args.stride;
  for (int64_t g = 0; g < args.groups; ++g, group += args.cols) {
    float sum = 0;
    for (int64_t c = 0; c < args.cols; ++c) sum += std::fabs(group[c]);
    sum = std::max(sum, args.floor);
    for (int64_t c = 0; c < args.cols; ++c) group[c] /= sum;
  }
}

void norm_rows(const SumNormArgs& args, ThreadPool& pool) {
  COLUBER_CHECK(args.rows >= 0 && args.groups > 0 && args.cols > 0 && args.stride >= args.groups * args.cols,
                "{} rows of {} groups of {} columns, {} apart", args.rows, args.groups, args.cols, args.stride);
  const int64_t grain = std::max<int64_t>(1, kGrain / (args.groups * args.cols));
  pool.parallel_for(args.rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) norm_row(args, row);
  });
}

}  // namespace

const Operation<SumNormFunction>& sum_norm() {
  static const Operation<SumNormFunction> operation("sum_norm", {{"loop", Isa::kRef, norm_rows}});
  return operation;
}

namespace {
const RegisterOperations kEntered(sum_norm);
}

}  // namespace coluber
