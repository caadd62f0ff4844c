// SPDX-License-Identifier: Apache-2.0
//
// The element-wise middle of a feed-forward layer, dense or of an expert:
//
//   out = f(min(gate_scale * gate, limit)) * clamp(up, -limit, limit)        without `up`: the first factor alone
//
//   silu     x / (1 + exp(-x))                      relu     max(x, 0)
//   gelu     x/2 * (1 + erf(x / sqrt 2))            relu2    max(x, 0)^2
//   gelu_tanh  x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
//   sigmoid  1 / (1 + exp(-x))
//
// Element by element, so a row's result does not depend on the others; `out` may be `gate` or `up`. A NaN goes through.
// Strides let gate and up be halves of one product's rows.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kSigmoid };
// As configs spell it: "silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2", "sigmoid"; nothing
// for any other word.
std::optional<Activation> parse_activation(std::string_view name) noexcept;

// The tail of gelu is a product of a small factor: what the formula with erf rounds to zero is not asked for.
inline constexpr Tolerance kActivateTolerance{.absolute = 1e-7, .relative = 3e-6};

struct ActivateArgs {
  Activation activation = Activation::kSilu;
  const float* gate = nullptr;  // [rows, cols], row stride gate_stride
  int64_t gate_stride = 0;
  const float* up = nullptr;  // [rows, cols], row stride up_stride, or null: not gated
  int64_t up_stride = 0;
  float* out = nullptr;  // [rows, cols], row stride out_stride
  int64_t out_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  float limit = std::numeric_limits<float>::infinity();
  float gate_scale = 1;
};

using ActivateFunction = void (*)(const ActivateArgs& args, ThreadPool& pool);
const Operation<ActivateFunction>& activate();

void activate_ref(const ActivateArgs& args, ThreadPool& pool);

}  // namespace coluber
