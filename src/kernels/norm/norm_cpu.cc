// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/norm_cpu.h"

#define COLUBER_SIMD_SOURCE "kernels/norm/norm_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

const NormFunctions kNormAvx512 = avx512::kFunctions;
const NormFunctions kNormAvx2 = avx2::kFunctions;

}  // namespace coluber
