// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/time_mix.h"

#include "kernels/op_registry.h"
#include "kernels/wkv/time_mix_ref.h"

#define COLUBER_SIMD_SOURCE "kernels/wkv/time_mix_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const Operation<TokenShiftFunction>& token_shift() {
  static const Operation<TokenShiftFunction> operation("token_shift", {
                                                                          {"avx512", Isa::kAvx512, avx512::token_shift},
                                                                          {"avx2", Isa::kAvx2, avx2::token_shift},
                                                                          {"ref", Isa::kRef, ref::token_shift},
                                                                      });
  return operation;
}

const Operation<TokenMixFunction>& token_mix() {
  static const Operation<TokenMixFunction> operation("token_mix", {
                                                                      {"avx512", Isa::kAvx512, avx512::token_mix},
                                                                      {"avx2", Isa::kAvx2, avx2::token_mix},
                                                                      {"ref", Isa::kRef, ref::token_mix},
                                                                  });
  return operation;
}

const Operation<WkvMapFunction>& wkv_map() {
  static const Operation<WkvMapFunction> operation("wkv_map", {
                                                                  {"avx512", Isa::kAvx512, avx512::wkv_map},
                                                                  {"avx2", Isa::kAvx2, avx2::wkv_map},
                                                                  {"ref", Isa::kRef, ref::wkv_map},
                                                              });
  return operation;
}

const Operation<HeadNormFunction>& head_norm() {
  static const Operation<HeadNormFunction> operation("head_norm", {
                                                                      {"avx512", Isa::kAvx512, avx512::head_norm},
                                                                      {"avx2", Isa::kAvx2, avx2::head_norm},
                                                                      {"ref", Isa::kRef, ref::head_norm},
                                                                  });
  return operation;
}

const Operation<Wkv7PrepareFunction>& wkv7_prepare() {
  static const Operation<Wkv7PrepareFunction> operation("wkv7_prepare",
                                                        {
                                                            {"avx512", Isa::kAvx512, avx512::wkv7_prepare},
                                                            {"avx2", Isa::kAvx2, avx2::wkv7_prepare},
                                                            {"ref", Isa::kRef, ref::wkv7_prepare},
                                                        });
  return operation;
}

namespace {
const RegisterOperations kEntered(token_shift, token_mix, wkv_map, head_norm, wkv7_prepare);
}

}  // namespace coluber
