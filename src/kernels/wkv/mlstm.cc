// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/mlstm.h"

#include "kernels/op_registry.h"
#include "kernels/wkv/mlstm_ref.h"

#define COLUBER_SIMD_SOURCE "kernels/wkv/mlstm_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<MlstmFunction>& mlstm() {
  static const Operation<MlstmFunction> operation("mlstm", {
                                                               {"avx512", Isa::kAvx512, avx512::mlstm},
                                                               {"avx2", Isa::kAvx2, avx2::mlstm},
                                                               {"ref", Isa::kRef, ref::mlstm},
                                                           });
  return operation;
}

namespace {
const RegisterOperations kEntered(mlstm);
}

}  // namespace coluber
