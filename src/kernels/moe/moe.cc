// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kernels/moe/activation.h"
#include "kernels/moe/experts.h"
#include "kernels/op_registry.h"

#define COLUBER_SIMD_SOURCE "kernels/moe/moe_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

// What one thread does in about the time that a worker needs to wake: 4096 exponentials.
constexpr int64_t kElementGrain = 4096;

template <void (*part)(const ActivateArgs&, const float*, const float*, float*, int64_t)>
void activate_parallel(const ActivateArgs& args, ThreadPool& pool) {
  ActivateArgs a = args;
  const bool gated = a.up != nullptr;
  if (a.rows > 1 && a.gate_stride == a.cols && a.out_stride == a.cols && (!gated || a.up_stride == a.cols)) {
    a.cols *= a.rows;  // one long row
    a.rows = 1;
  }
  const int64_t parts = std::max<int64_t>(1, (a.cols + kElementGrain - 1) / kElementGrain);  // of a row
  auto body = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / parts, from = i % parts * kElementGrain;
      part(a, a.gate + row * a.gate_stride + from, gated ? a.up + row * a.up_stride + from : nullptr,
           a.out + row * a.out_stride + from, std::min(kElementGrain, a.cols - from));
    }
  };
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, a.cols));
  if (a.rows * parts <= grain) return body(0, a.rows * parts, 0);
  pool.parallel_for(a.rows * parts, grain, body);
}

template <void (*token)(const CombineExpertsArgs&, int64_t)>
void combine_parallel(const CombineExpertsArgs& args, ThreadPool& pool) {
  const int64_t work = std::max<int64_t>(1, args.top_k * args.width);
  const int64_t grain = std::max<int64_t>(1, 8 * kElementGrain / work);
  auto body = [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) token(args, t);
  };
  if (args.num_tokens <= grain) return body(0, args.num_tokens, 0);
  pool.parallel_for(args.num_tokens, grain, body);
}

}  // namespace

namespace {

struct NamedActivation {
  std::string_view name;
  Activation activation;
};

// `gelu_accurate`, `gelu_fast` and `gelu_new` are roundings of the same formula.
constexpr NamedActivation kNamed[] = {
    {"gelu", Activation::kGelu},
    {"gelu_10", Activation::kGelu10},
    {"gelu_accurate", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_python", Activation::kGelu},
    {"gelu_python_tanh", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"hardswish", Activation::kHardswish},
    {"laplace", Activation::kLaplace},
    {"leaky_relu", Activation::kLeakyRelu},
    {"linear", Activation::kLinear},
    {"mish", Activation::kMish},
    {"quick_gelu", Activation::kQuickGelu},
    {"relu", Activation::kRelu},
    {"relu2", Activation::kRelu2},
    {"relu6", Activation::kRelu6},
    {"sigmoid", Activation::kSigmoid},
    {"silu", Activation::kSilu},
    {"sqrtsoftplus", Activation::kSqrtSoftplus},
    {"swish", Activation::kSilu},
    {"tanh", Activation::kTanh},
};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kNamed)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kNamed[i].name;
  return names;
}();

}  // namespace

std::optional<Activation> parse_activation(std::string_view name) noexcept {
  for (const NamedActivation& named : kNamed)
    if (named.name == name) return named.activation;
  return std::nullopt;
}

std::span<const std::string_view> activation_names() noexcept { return kNames; }

const Operation<ActivateFunction>& activate() {
  static const Operation<ActivateFunction> operation(
      "activate", {{"avx512", Isa::kAvx512, &activate_parallel<avx512::moe_activate_part>},
                   {"avx2", Isa::kAvx2, &activate_parallel<avx2::moe_activate_part>},
                   {"ref", Isa::kRef, &activate_ref}});
  return operation;
}

const Operation<CombineExpertsFunction>& combine_experts() {
  static const Operation<CombineExpertsFunction> operation(
      "combine_experts", {{"avx512", Isa::kAvx512, &combine_parallel<avx512::moe_combine>},
                          {"avx2", Isa::kAvx2, &combine_parallel<avx2::moe_combine>},
                          {"ref", Isa::kRef, &combine_experts_ref}});
  return operation;
}

namespace {
const RegisterOperations kEntered(activate, combine_experts);
}

}  // namespace coluber
