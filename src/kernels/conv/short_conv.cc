// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/short_conv.h"

#include "kernels/conv/short_conv_ref.h"
#include "kernels/op_registry.h"

#define COLUBER_SIMD_SOURCE "kernels/conv/short_conv_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<ShortConvFunction>& short_conv() {
  static const Operation<ShortConvFunction> operation("short_conv", {
                                                                        {"avx512", Isa::kAvx512, avx512::short_conv},
                                                                        {"avx2", Isa::kAvx2, avx2::short_conv},
                                                                        {"ref", Isa::kRef, ref::short_conv},
                                                                    });
  return operation;
}

const Operation<ShortConvFunction>& short_conv_update() {
  static const Operation<ShortConvFunction> operation("short_conv_update",
                                                      {
                                                          {"avx512", Isa::kAvx512, avx512::short_conv_update},
                                                          {"avx2", Isa::kAvx2, avx2::short_conv_update},
                                                          {"ref", Isa::kRef, ref::short_conv_update},
                                                      });
  return operation;
}

namespace {
const RegisterOperations kEntered(short_conv, short_conv_update);
}

}  // namespace coluber
