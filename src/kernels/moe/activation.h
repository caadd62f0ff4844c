// SPDX-License-Identifier: Apache-2.0
//
// The element-wise middle of a feed-forward layer, dense or of an expert:
//
//   out = f(min(gate_scale * gate, limit)) * clamp(up, -limit, limit)        without `up`: the first factor alone
//
//   silu     x / (1 + exp(-x))                      relu     max(x, 0)
//   gelu     x/2 * (1 + erf(x / sqrt 2))            relu2    max(x, 0)^2
//   gelu_tanh  x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
//   sigmoid  1 / (1 + exp(-x))                      tanh     tanh(x)
//   quick_gelu  x / (1 + exp(-1.702 x))             gelu_10  gelu within [-10, 10]
//   mish     x tanh(log(1 + exp(x)))                laplace  1/2 * (1 + erf((x - 0.707107) / (0.282095 sqrt 2)))
//   hardswish   x min(max(x + 3, 0), 6) / 6         relu6    min(max(x, 0), 6)
//   leaky_relu  x, or x / 100 below 0               linear   x
//   sqrtsoftplus  sqrt(log(1 + exp(x)))             elu_p1   x + 1, or exp(x) below 0
//
// Element by element, so a row's result does not depend on the others; `out` may be `gate` or `up`. A NaN goes through.
// Strides let gate and up be halves of one product's rows.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

enum class Activation {
  kSilu,
  kGelu,
  kGeluTanh,
  kRelu,
  kRelu2,
  kSigmoid,
  kTanh,
  kQuickGelu,
  kGelu10,
  kMish,
  kLaplace,
  kHardswish,
  kRelu6,
  kLeakyRelu,
  kLinear,
  kSqrtSoftplus,
  kEluPlusOne,  // of keys; no config names it as a layer's activation
};
// As configs spell it: every word of transformers that names a function of one number alone; nothing for any other.
std::optional<Activation> parse_activation(std::string_view name) noexcept;
// Those words, in alphabetical order.
std::span<const std::string_view> activation_names() noexcept;

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
