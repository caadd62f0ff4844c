// SPDX-License-Identifier: Apache-2.0
// The vector type of the AVX2 tier: 8 lanes of float32. Same names as vec_avx512.inl.
inline constexpr int kLanes = 8;
inline constexpr int kRegisters = 16;

struct Vec {
  __m256 v;
};

COLUBER_INLINE Vec zero() { return {_mm256_setzero_ps()}; }
COLUBER_INLINE Vec set1(float x) { return {_mm256_set1_ps(x)}; }
COLUBER_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
COLUBER_INLINE void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
COLUBER_INLINE __m256i tail_mask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n lanes (n <= kLanes); the others read as 0 and are not written.
COLUBER_INLINE Vec load_n(const float* p, int n) { return {_mm256_maskload_ps(p, tail_mask(n))}; }
COLUBER_INLINE void store_n(float* p, Vec a, int n) { _mm256_maskstore_ps(p, tail_mask(n), a.v); }

COLUBER_INLINE Vec load_bf16(const uint16_t* p) {
  __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
}
COLUBER_INLINE Vec load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Round to nearest even; NaN stays NaN.
COLUBER_INLINE void store_bf16(uint16_t* p, Vec a) {
  __m256i bits = _mm256_castps_si256(a.v);
  __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i top = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(top, top), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
// 2 * kLanes values in pairs of two successive k of one output: the first and the second of each pair.
struct VecPairs {
  __m256i v;
};
COLUBER_INLINE VecPairs load_bf16_pairs(const uint16_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
// One pair in all lanes; `pair` holds the first value in its low half.
COLUBER_INLINE VecPairs set1_bf16_pair(uint32_t pair) { return {_mm256_set1_epi32(static_cast<int>(pair))}; }
COLUBER_INLINE Vec first_of_pairs(VecPairs a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(a.v, 16))}; }
COLUBER_INLINE Vec second_of_pairs(VecPairs a) {
  return {_mm256_castsi256_ps(_mm256_and_si256(a.v, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}
COLUBER_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
COLUBER_INLINE void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
// For a line that will be written.
COLUBER_INLINE void prefetch_write(void* p) { __builtin_prefetch(p, 1); }
COLUBER_INLINE void store_f16(uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

COLUBER_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
COLUBER_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
COLUBER_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
COLUBER_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
COLUBER_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }    // a*b + c
COLUBER_INLINE Vec fnma(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a*b
// acc + first(a) * first(b) + second(a) * second(b). Native in the avx512_bf16 tier (kHasBf16Dot), where the order of
// the sum is the processor's and denormals count as zero; the same in two fused steps elsewhere.
inline constexpr bool kHasBf16Dot = false;
COLUBER_INLINE Vec dot_bf16(Vec acc, VecPairs a, VecPairs b) {
  acc = fma(second_of_pairs(a), second_of_pairs(b), acc);
  return fma(first_of_pairs(a), first_of_pairs(b), acc);
}
COLUBER_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
COLUBER_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
COLUBER_INLINE Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
COLUBER_INLINE Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for integral n in [-126, 127]; 0 for n = -127.
COLUBER_INLINE Vec pow2i(Vec n) {
  return {
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}
// a > b ? x : y
COLUBER_INLINE Vec select_gt(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ))};
}
// a is NaN ? a : x
COLUBER_INLINE Vec keep_nan(Vec a, Vec x) {
  return {_mm256_blendv_ps(x.v, a.v, _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q))};
}
// Splits a positive normal number: exponent as float, mantissa in [1, 2).
COLUBER_INLINE Vec exponent_of(Vec a) {
  return {
      _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(a.v), 23), _mm256_set1_epi32(127)))};
}
COLUBER_INLINE Vec mantissa_of(Vec a) {
  __m256i m = _mm256_and_si256(_mm256_castps_si256(a.v), _mm256_set1_epi32(0x7fffff));
  return {_mm256_castsi256_ps(_mm256_or_si256(m, _mm256_set1_epi32(0x3f800000)))};
}
COLUBER_INLINE float reduce_add(Vec a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
COLUBER_INLINE float reduce_max(Vec a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
