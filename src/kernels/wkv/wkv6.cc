// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/wkv6.h"

#include "kernels/op_registry.h"
#include "kernels/wkv/wkv_ref.h"

#define COLUBER_SIMD_SOURCE "kernels/wkv/wkv6_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<Wkv6Function>& wkv6() {
  static const Operation<Wkv6Function> operation("wkv6", {
                                                             {"avx512", Isa::kAvx512, avx512::wkv6},
                                                             {"avx2", Isa::kAvx2, avx2::wkv6},
                                                             {"ref", Isa::kRef, ref::wkv6},
                                                         });
  return operation;
}

namespace {
const RegisterOperations kEntered(wkv6);
}

}  // namespace coluber
