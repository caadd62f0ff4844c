// SPDX-License-Identifier: Apache-2.0
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

std::optional<Activation> parse_activation(std::string_view name) noexcept {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  if (name == "relu2") return Activation::kRelu2;
  if (name == "sigmoid") return Activation::kSigmoid;
  return std::nullopt;
}

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
