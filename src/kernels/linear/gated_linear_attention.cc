// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/gated_linear_attention.h"

#include "kernels/linear/gated_linear_attention_ref.h"
#include "kernels/linear/lightning_attention.h"
#include "kernels/op_registry.h"

#define COLUBER_SIMD_SOURCE "kernels/linear/gated_linear_attention_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<GatedLinearAttentionFunction>& gated_linear_attention() {
  static const Operation<GatedLinearAttentionFunction> operation(
      "gated_linear_attention", {
                                    {"avx512", Isa::kAvx512, avx512::gated_linear_attention},
                                    {"avx2", Isa::kAvx2, avx2::gated_linear_attention},
                                    {"ref", Isa::kRef, ref::gated_linear_attention},
                                });
  return operation;
}

const Operation<GatedLinearAttentionFunction>& gated_linear_attention_update() {
  static const Operation<GatedLinearAttentionFunction> operation(
      "gated_linear_attention_update", {
                                           {"avx512", Isa::kAvx512, avx512::gated_linear_attention_update},
                                           {"avx2", Isa::kAvx2, avx2::gated_linear_attention_update},
                                           {"ref", Isa::kRef, ref::gated_linear_attention_update},
                                       });
  return operation;
}

const Operation<LightningAttentionFunction>& lightning_attention() {
  static const Operation<LightningAttentionFunction> operation(
      "lightning_attention", {
                                 {"avx512", Isa::kAvx512, avx512::lightning_attention},
                                 {"avx2", Isa::kAvx2, avx2::lightning_attention},
                                 {"ref", Isa::kRef, ref::lightning_attention},
                             });
  return operation;
}

const Operation<LightningAttentionFunction>& lightning_attention_update() {
  static const Operation<LightningAttentionFunction> operation(
      "lightning_attention_update", {
                                        {"avx512", Isa::kAvx512, avx512::lightning_attention_update},
                                        {"avx2", Isa::kAvx2, avx2::lightning_attention_update},
                                        {"ref", Isa::kRef, ref::lightning_attention_update},
                                    });
  return operation;
}

namespace {
const RegisterOperations kEntered(gated_linear_attention, gated_linear_attention_update, lightning_attention,
                                  lightning_attention_update);
}

}  // namespace coluber
