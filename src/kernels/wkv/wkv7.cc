// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/wkv7.h"

#include "kernels/op_registry.h"
#include "kernels/wkv/wkv_ref.h"

#define COLUBER_SIMD_SOURCE "kernels/wkv/wkv7_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<Wkv7Function>& wkv7() {
  static const Operation<Wkv7Function> operation("wkv7", {
                                                             {"avx512", Isa::kAvx512, avx512::wkv7},
                                                             {"avx2", Isa::kAvx2, avx2::wkv7},
                                                             {"ref", Isa::kRef, ref::wkv7},
                                                         });
  return operation;
}

namespace {
const RegisterOperations kEntered(wkv7);
}

}  // namespace coluber
