// SPDX-License-Identifier: Apache-2.0
//
// Norms over rows of float32. With u = x, or x * silu(z) where a gate comes first:
//
//   rms_norm            y = u / sqrt(mean(u^2) + eps) * (weight + weight_offset)          weight may be null: 1
//   gate_then_rms_norm  the same over u = x * silu(z), in groups of columns              (Mamba-2)
//   rms_norm_then_gate  rms_norm of x in groups of columns, then * gate(z)               (Zamba-like, GDN, lightning
//   attention) layer_norm          y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias           either may be null
//
// A group's mean runs over its own columns alone; the weight covers all columns. Sums are float32 in an order that
// depends on the tier only, never on the rows beside. In place (y = x) is fine. The kernels touch no memory but their
// rows.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

struct RmsNormArgs {
  const float* x = nullptr;  // [rows, cols], row stride x_stride
  int64_t x_stride = 0;
  float* y = nullptr;  // [rows, cols], row stride y_stride
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  const float* weight = nullptr;  // [cols] or null
  float weight_offset = 0;        // 1 where the stored weight is centred on zero
  float eps = 1e-5f;
};

enum class Gate { kSilu, kSigmoid };

struct GatedRmsNormArgs {
  RmsNormArgs norm;
  const float* z = nullptr;  // [rows, cols], row stride z_stride
  int64_t z_stride = 0;
  int64_t groups = 1;  // of cols / groups columns each
  Gate gate = Gate::kSilu;
};

struct LayerNormArgs {
  RmsNormArgs norm;             // weight_offset as there
  const float* bias = nullptr;  // [cols] or null
};

using RmsNormFunction = void (*)(const RmsNormArgs& args, ThreadPool& pool);
using GatedRmsNormFunction = void (*)(const GatedRmsNormArgs& args, ThreadPool& pool);
using LayerNormFunction = void (*)(const LayerNormArgs& args, ThreadPool& pool);

const Operation<RmsNormFunction>& rms_norm();
const Operation<GatedRmsNormFunction>& gate_then_rms_norm();
const Operation<GatedRmsNormFunction>& rms_norm_then_gate();
const Operation<LayerNormFunction>& layer_norm();

// The rounding of the sums (2e-6), and of exp in a gate.
inline constexpr Tolerance kNormTolerance = {.absolute = 1e-30, .relative = 3e-6, .of_rms = 1e-6};

}  // namespace coluber
