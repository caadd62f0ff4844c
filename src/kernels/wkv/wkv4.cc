// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/wkv4.h"

#include "kernels/op_registry.h"
#include "kernels/wkv/wkv_ref.h"

#define COLUBER_SIMD_SOURCE "kernels/wkv/wkv4_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<Wkv4Function>& wkv4() {
  static const Operation<Wkv4Function> operation("wkv4", {
                                                             {"avx512", Isa::kAvx512, avx512::wkv4},
                                                             {"avx2", Isa::kAvx2, avx2::wkv4},
                                                             {"ref", Isa::kRef, ref::wkv4},
                                                         });
  return operation;
}

namespace {
const RegisterOperations kEntered(wkv4);
}

}  // namespace coluber
