// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "kernels/moe/activation.h"
#include "kernels/moe/experts.h"

namespace coluber {

namespace {

double activated(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x * std::numbers::sqrt2 / 2.0);
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return x < 0.0 ? 0.0 : x;
    case Activation::kRelu2:
      return x < 0.0 ? 0.0 : x * x;
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kQuickGelu:
      return x / (1.0 + std::exp(-1.702 * x));
    case Activation::kGelu10: {
      const double gelu = activated(Activation::kGelu, x);
      return gelu > 10.0 ? 10.0 : gelu;
    }
    case Activation::kMish:
      return x * std::tanh(std::log1p(std::exp(x)));
    case Activation::kLaplace:
      return 0.5 * std::erfc((0.707107 - x) / (0.282095 * std::numbers::sqrt2));
    case Activation::kHardswish:
      return x < -3.0 ? 0.0 : x > 3.0 ? x : x * (x + 3.0) / 6.0;
    case Activation::kRelu6:
      return x < 0.0 ? 0.0 : x > 6.0 ? 6.0 : x;
    case Activation::kLeakyRelu:
      return x < 0.0 ? 0.01 * x : x;
    case Activation::kLinear:
      return x;
    case Activation::kSqrtSoftplus:
      return std::sqrt(x > 30.0 ? x : std::log1p(std::exp(x)));
    case Activation::kEluPlusOne:
      return x > 0.0 ? x + 1.0 : std::exp(x);
  }
  return x;
}

}  // namespace

void activate_ref(const ActivateArgs& args, ThreadPool&) {
  const double limit = args.limit;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = 0; c < args.cols; ++c) {
      const double gate = static_cast<double>(args.gate_scale) * args.gate[r * args.gate_stride + c];
      double y = activated(args.activation, gate > limit ? limit : gate);
      if (args.up != nullptr) {
        const double up = args.up[r * args.up_stride + c];
        y *= up > limit ? limit : (up < -limit ? -limit : up);
      }
      args.out[r * args.out_stride + c] = static_cast<float>(y);
    }
  }
}

void combine_experts_ref(const CombineExpertsArgs& args, ThreadPool&) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t d = 0; d < args.width; ++d) {
      double sum = 0;
      for (int64_t j = t * args.top_k; j < (t + 1) * args.top_k; ++j) {
        if (args.places[j] < 0) continue;
        sum += static_cast<double>(args.weights[j]) * args.rows[args.places[j] * args.width + d];
      }
      float& y = args.y[t * args.width + d];
      y = static_cast<float>(args.accumulate ? y + sum : sum);
    }
  }
}

}  // namespace coluber
