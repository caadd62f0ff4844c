// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/causal_conv1d.h"

#include "kernels/conv/causal_conv1d_ref.h"
#include "kernels/op_registry.h"

#define COLUBER_SIMD_SOURCE "kernels/conv/causal_conv1d_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<CausalConv1dFunction>& causal_conv1d() {
  static const Operation<CausalConv1dFunction> operation("causal_conv1d",
                                                         {
                                                             {"avx512", Isa::kAvx512, avx512::causal_conv1d},
                                                             {"avx2", Isa::kAvx2, avx2::causal_conv1d},
                                                             {"ref", Isa::kRef, ref::causal_conv1d},
                                                         });
  return operation;
}

const Operation<CausalConv1dFunction>& causal_conv1d_update() {
  static const Operation<CausalConv1dFunction> operation("causal_conv1d_update",
                                                         {
                                                             {"avx512", Isa::kAvx512, avx512::causal_conv1d_update},
                                                             {"avx2", Isa::kAvx2, avx2::causal_conv1d_update},
                                                             {"ref", Isa::kRef, ref::causal_conv1d_update},
                                                         });
  return operation;
}

namespace {
const RegisterOperations kEntered(causal_conv1d, causal_conv1d_update);
}

}  // namespace coluber
