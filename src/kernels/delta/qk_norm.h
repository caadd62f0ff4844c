// SPDX-License-Identifier: Apache-2.0
//
// Brings the queries and keys of the delta rules to a length that keeps their states from growing, head by head:
//
//   kL2    y = x / sqrt(sum(x^2) + eps)
//   kSum   y = x / sum(x)              (DeltaNet's qk_norm "sum")
//
// In place (y = x) is fine.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

enum class QkNorm { kL2, kSum };

// Beside a sum of both signs that all but vanishes no bound holds; positive values are what it is used with.
inline constexpr Tolerance kQkNormTolerance{1e-30, 2e-6, 1e-6};

struct QkNormArgs {
  const float* x = nullptr;  // [T, H, D], heads D apart
  int64_t x_stride = 0;      // elements between tokens
  float* y = nullptr;        // [T, H, D], heads D apart
  int64_t y_stride = 0;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  QkNorm kind = QkNorm::kL2;
  float eps = 1e-6f;  // of kL2
};

using QkNormFunction = void (*)(const QkNormArgs& args, ThreadPool& pool);
const Operation<QkNormFunction>& qk_norm();

}  // namespace coluber
