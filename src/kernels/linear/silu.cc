// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/silu.h"

#include "kernels/op_registry.h"

#include <cmath>

#define COLUBER_SIMD_SOURCE "kernels/linear/silu_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

void silu_ref(const SiluArgs& args, ThreadPool&) {
  for (int64_t i = 0; i < args.count; ++i) {
    const double x = args.x[i];
    args.y[i] = static_cast<float>(x / (1.0 + std::exp(-x)));
  }
}

}  // namespace

const Operation<SiluFunction>& silu() {
  static const Operation<SiluFunction> operation("silu", {
                                                             {"avx512", Isa::kAvx512, avx512::silu},
                                                             {"avx2", Isa::kAvx2, avx2::silu},
                                                             {"ref", Isa::kRef, silu_ref},
                                                         });
  return operation;
}

namespace {
const RegisterOperations kEntered(silu);
}

}  // namespace coluber
