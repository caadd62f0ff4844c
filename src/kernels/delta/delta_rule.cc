// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/delta_rule.h"

#include "base/error.h"
#include "kernels/op_registry.h"

#define COLUBER_SIMD_SOURCE "kernels/delta/delta_rule_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

void check_delta_rule(const DeltaRuleArgs& args) {
  COLUBER_CHECK(args.num_k_heads > 0 && args.num_v_heads > 0 && args.num_v_heads % args.num_k_heads == 0,
                "{} value heads must be a multiple of {} key heads", args.num_v_heads, args.num_k_heads);
  COLUBER_CHECK(args.key_dim > 0 && args.key_dim <= kMaxDeltaKeyDim && args.value_dim > 0,
                "key dim {} (at most {}), value dim {}", args.key_dim, kMaxDeltaKeyDim, args.value_dim);
  COLUBER_CHECK(args.gate == nullptr || args.gate_rate != nullptr, "a gate of {} heads without its rates",
                args.num_v_heads);
}

const Operation<DeltaRuleFunction>& delta_rule() {
  static const Operation<DeltaRuleFunction> operation("delta_rule", {{"avx512", Isa::kAvx512, &avx512::delta_rule},
                                                                     {"avx2", Isa::kAvx2, &avx2::delta_rule},
                                                                     {"ref", Isa::kRef, &delta_rule_ref}});
  return operation;
}

namespace {
const RegisterOperations kEntered(delta_rule);
}

}  // namespace coluber
