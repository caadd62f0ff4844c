// SPDX-License-Identifier: Apache-2.0
// Compiles one SIMD source once per tier inside one translation unit:
//
//   #define COLUBER_SIMD_SOURCE "kernels/scan/selective_scan_cpu.inl"
//   #include "kernels/simd/foreach_isa.h"
//
// The source has no include guard and includes nothing that is not already included: it is wrapped in namespace
// coluber::avx2, ::avx512 and ::avx512_bf16, under the target options of the tier, after that tier's vector type
// (vec.inl). Include every header that the source needs above these two lines. Constructors that the compiler writes by
// itself do not get the tier's target options: a struct that starts with vectors needs one of its own.

// GCC 12's own AVX-512 intrinsics pass "undefined" registers on purpose and then warn about them where they are
// inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if !defined(COLUBER_SIMD_SOURCE)
#error "define COLUBER_SIMD_SOURCE first"
#endif

#define COLUBER_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,prfchw")
#define COLUBER_ISA_AVX512 0
#define COLUBER_ISA_BF16 0
namespace coluber::avx2 {
#include "kernels/simd/vec_avx2.inl"
#include "kernels/simd/vec_math.inl"
#include COLUBER_SIMD_SOURCE
}  // namespace coluber::avx2
#undef COLUBER_ISA_AVX512
#undef COLUBER_ISA_BF16
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,prfchw,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#define COLUBER_ISA_AVX512 1
#define COLUBER_ISA_BF16 0
namespace coluber::avx512 {
#include "kernels/simd/vec_avx512.inl"
#include "kernels/simd/vec_math.inl"
#include COLUBER_SIMD_SOURCE
}  // namespace coluber::avx512
#undef COLUBER_ISA_BF16
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target( \
    "avx2,fma,f16c,prfchw,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,prefer-vector-width=512")
#define COLUBER_ISA_BF16 1
namespace coluber::avx512_bf16 {
#include "kernels/simd/vec_avx512.inl"
#include "kernels/simd/vec_math.inl"
#include COLUBER_SIMD_SOURCE
}  // namespace coluber::avx512_bf16
#undef COLUBER_ISA_AVX512
#undef COLUBER_ISA_BF16
#pragma GCC pop_options

#endif

#pragma GCC diagnostic pop
#undef COLUBER_SIMD_SOURCE
