// SPDX-License-Identifier: Apache-2.0
#include "kernels/roofline/roofline.h"

#include "kernels/op_registry.h"

#define COLUBER_SIMD_SOURCE "kernels/roofline/roofline_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

uint64_t read_scalar(const void* data, int64_t bytes) {
  const auto* words = static_cast<const uint64_t*>(data);
  uint64_t all = 0;
  for (int64_t i = 0; i < bytes / 8; ++i) all ^= words[i];
  return all;
}

float fma_scalar(int64_t rounds, float seed) {
  float sums[10];
  for (int i = 0; i < 10; ++i) sums[i] = seed + static_cast<float>(i);
  for (int64_t round = 0; round < rounds; ++round) {
    for (float& sum : sums) sum = std::fma(sum, 0.999f, 0.001f);
  }
  float total = 0;
  for (float sum : sums) total += sum;
  return total;
}

RooflineLoops loops_ref() { return {read_scalar, fma_scalar, 2 * 10}; }

}  // namespace

const Operation<RooflineFunction>& roofline_loops() {
  static const Operation<RooflineFunction> operation("roofline", {
                                                                     {"avx512", Isa::kAvx512, avx512::loops},
                                                                     {"avx2", Isa::kAvx2, avx2::loops},
                                                                     {"ref", Isa::kRef, loops_ref},
                                                                 });
  return operation;
}

namespace {
const RegisterOperations kEntered(roofline_loops);
}

}  // namespace coluber
