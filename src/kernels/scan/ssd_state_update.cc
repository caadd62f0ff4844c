// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd.h"
#include "kernels/op_registry.h"
#include "kernels/scan/ssd_ref.h"

#define COLUBER_SIMD_SOURCE "kernels/scan/ssd_state_update_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<SsdFunction>& ssd_state_update() {
  static const Operation<SsdFunction> operation("ssd_state_update",
                                                {
                                                    {"avx512", Isa::kAvx512, avx512::ssd_state_update},
                                                    {"avx2", Isa::kAvx2, avx2::ssd_state_update},
                                                    {"ref", Isa::kRef, ref::ssd_state_update},
                                                });
  return operation;
}

namespace {
const RegisterOperations kEntered(ssd_state_update);
}

}  // namespace coluber
