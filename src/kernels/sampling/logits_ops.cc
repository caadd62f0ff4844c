// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling/logits_ops.h"

#include "kernels/op_registry.h"
#include "kernels/sampling/exact_exp.h"

#define COLUBER_SIMD_SOURCE "kernels/sampling/logits_ops_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<ScanLogitsFunction>& scan_logits() {
  static const Operation<ScanLogitsFunction> operation("scan_logits",
                                                       {{"avx512", Isa::kAvx512, &avx512::sampling_scan_logits},
                                                        {"avx2", Isa::kAvx2, &avx2::sampling_scan_logits},
                                                        {"ref", Isa::kRef, &scan_logits_ref}});
  return operation;
}

const Operation<SumWeightsFunction>& sum_weights() {
  static const Operation<SumWeightsFunction> operation("sum_weights",
                                                       {{"avx512", Isa::kAvx512, &avx512::sampling_sum_weights},
                                                        {"avx2", Isa::kAvx2, &avx2::sampling_sum_weights},
                                                        {"ref", Isa::kRef, &sum_weights_ref}});
  return operation;
}

namespace {
const RegisterOperations kEntered(scan_logits, sum_weights);
}

}  // namespace coluber
