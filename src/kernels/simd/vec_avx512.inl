// SPDX-License-Identifier: Apache-2.0
// The vector type of the AVX-512 tiers: 16 lanes of float32. Same names as vec_avx2.inl.
inline constexpr int kLanes = 16;
inline constexpr int kRegisters = 32;

struct Vec {
  __m512 v;
};

COLUBER_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
COLUBER_INLINE Vec set1(float x) { return {_mm512_set1_ps(x)}; }
COLUBER_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
COLUBER_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
COLUBER_INLINE __mmask16 tail_mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
// The first n lanes (n <= kLanes); the others read as 0 and are not written.
COLUBER_INLINE Vec load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(tail_mask(n), p)}; }
COLUBER_INLINE void store_n(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, tail_mask(n), a.v); }

COLUBER_INLINE Vec load_bf16(const uint16_t* p) {
  __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
COLUBER_INLINE Vec load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Round to nearest even; NaN stays NaN.
COLUBER_INLINE void store_bf16(uint16_t* p, Vec a) {
  __m512i bits = _mm512_castps_si512(a.v);
  __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
// 2 * kLanes values in pairs of two successive k of one output: the first and the second of each pair.
struct VecPairs {
  __m512i v;
};
COLUBER_INLINE VecPairs load_bf16_pairs(const uint16_t* p) { return {_mm512_loadu_si512(p)}; }
// One pair in all lanes; `pair` holds the first value in its low half.
COLUBER_INLINE VecPairs set1_bf16_pair(uint32_t pair) { return {_mm512_set1_epi32(static_cast<int>(pair))}; }
COLUBER_INLINE Vec first_of_pairs(VecPairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
COLUBER_INLINE Vec second_of_pairs(VecPairs a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
COLUBER_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
COLUBER_INLINE void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
// For a line that will be written.
COLUBER_INLINE void prefetch_write(void* p) { __builtin_prefetch(p, 1); }
COLUBER_INLINE void store_f16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

COLUBER_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
COLUBER_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
COLUBER_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
COLUBER_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
COLUBER_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a*b + c
COLUBER_INLINE Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a*b
// acc + first(a) * first(b) + second(a) * second(b). Native in the avx512_bf16 tier (kHasBf16Dot), where the order of
// the sum is the processor's and denormals count as zero; the same in two fused steps elsewhere.
#if COLUBER_ISA_BF16
inline constexpr bool kHasBf16Dot = true;
COLUBER_INLINE Vec dot_bf16(Vec acc, VecPairs a, VecPairs b) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
#else
inline constexpr bool kHasBf16Dot = false;
COLUBER_INLINE Vec dot_bf16(Vec acc, VecPairs a, VecPairs b) {
  acc = fma(second_of_pairs(a), second_of_pairs(b), acc);
  return fma(first_of_pairs(a), first_of_pairs(b), acc);
}
#endif
COLUBER_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
COLUBER_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
COLUBER_INLINE Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
COLUBER_INLINE Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for integral n in [-126, 127]; 0 for n = -127.
COLUBER_INLINE Vec pow2i(Vec n) {
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
// a > b ? x : y
COLUBER_INLINE Vec select_gt(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v, x.v)};
}
// a is NaN ? a : x
COLUBER_INLINE Vec keep_nan(Vec a, Vec x) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), x.v, a.v)};
}
// Splits a positive normal number: exponent as float, mantissa in [1, 2).
COLUBER_INLINE Vec exponent_of(Vec a) {
  return {
      _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(a.v), 23), _mm512_set1_epi32(127)))};
}
COLUBER_INLINE Vec mantissa_of(Vec a) {
  __m512i m = _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffff));
  return {_mm512_castsi512_ps(_mm512_or_si512(m, _mm512_set1_epi32(0x3f800000)))};
}
COLUBER_INLINE float reduce_add(Vec a) { return _mm512_reduce_add_ps(a.v); }
COLUBER_INLINE float reduce_max(Vec a) { return _mm512_reduce_max_ps(a.v); }
