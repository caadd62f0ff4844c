// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/decay_gate.h"

#include "kernels/op_registry.h"

#include <cmath>

#define COLUBER_SIMD_SOURCE "kernels/linear/decay_gate_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

void log_sigmoid_decay_ref(const LogSigmoidDecayArgs& args, ThreadPool&) {
  for (int64_t i = 0; i < args.count; ++i) {
    const double x = args.x[i];
    const double log = std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x)));
    args.a[i] = static_cast<float>(std::exp(std::max(log / args.normalizer, static_cast<double>(args.clamp_min))));
  }
}

void bounded_decay_ref(const BoundedDecayArgs& args, ThreadPool&) {
  for (int64_t i = 0; i < args.tokens * args.channels; ++i) {
    const double x = args.x[i], lower = args.lower == nullptr ? 0.0 : args.lower[i % args.channels];
    args.key[i] = static_cast<float>((1.0 - lower) * sigmoid(-x));
    args.a[i] = static_cast<float>(lower + (1.0 - lower) * sigmoid(x));
  }
}

}  // namespace

const Operation<LogSigmoidDecayFunction>& log_sigmoid_decay() {
  static const Operation<LogSigmoidDecayFunction> operation("log_sigmoid_decay",
                                                            {
                                                                {"avx512", Isa::kAvx512, avx512::log_sigmoid_decay},
                                                                {"avx2", Isa::kAvx2, avx2::log_sigmoid_decay},
                                                                {"ref", Isa::kRef, log_sigmoid_decay_ref},
                                                            });
  return operation;
}

const Operation<BoundedDecayFunction>& bounded_decay() {
  static const Operation<BoundedDecayFunction> operation("bounded_decay",
                                                         {
                                                             {"avx512", Isa::kAvx512, avx512::bounded_decay},
                                                             {"avx2", Isa::kAvx2, avx2::bounded_decay},
                                                             {"ref", Isa::kRef, bounded_decay_ref},
                                                         });
  return operation;
}

namespace {
const RegisterOperations kEntered(log_sigmoid_decay, bounded_decay);
}

}  // namespace coluber
