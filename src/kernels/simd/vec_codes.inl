// SPDX-License-Identifier: Apache-2.0
// Codes of quantised weights over the tier's vector type: kLanes rows side by side, four bytes each, and what turns
// their bytes into float32. Conversions are exact, denormals included, and none is slow for some values.
#if COLUBER_ISA_AVX512
struct VecCodes {
  __m512i v;
};
COLUBER_INLINE VecCodes load_codes(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
COLUBER_INLINE VecCodes set1_codes(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
COLUBER_INLINE VecCodes operator&(VecCodes a, VecCodes b) { return {_mm512_and_si512(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator|(VecCodes a, VecCodes b) { return {_mm512_or_si512(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator^(VecCodes a, VecCodes b) { return {_mm512_xor_si512(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator-(VecCodes a, VecCodes b) { return {_mm512_sub_epi32(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator*(VecCodes a, VecCodes b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator>>(VecCodes a, int n) { return {_mm512_srlv_epi32(a.v, _mm512_set1_epi32(n))}; }
template <int kBits>
COLUBER_INLINE VecCodes shift_right(VecCodes a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
template <int kBits>
COLUBER_INLINE VecCodes shift_left(VecCodes a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
COLUBER_INLINE VecCodes max_codes(VecCodes a, VecCodes b) { return {_mm512_max_epi32(a.v, b.v)}; }
COLUBER_INLINE VecCodes sub_bytes(VecCodes a, VecCodes b) { return {_mm512_sub_epi8(a.v, b.v)}; }
// table[code] for each byte below 16.
COLUBER_INLINE VecCodes load_byte_table(const int8_t* table) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)))};
}
COLUBER_INLINE VecCodes look_up_bytes(VecCodes table, VecCodes codes) {
  return {_mm512_shuffle_epi8(table.v, codes.v)};
}
// Byte i of each four as the highest, the others zero: a signed number times 2^24.
template <int kByte>
COLUBER_INLINE VecCodes top_byte(VecCodes a) {
  if constexpr (kByte == 0) return {_mm512_slli_epi32(a.v, 24)};
  if constexpr (kByte == 3) return {_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xff000000u)))};
  const __m128i from =
      _mm_add_epi8(_mm_setr_epi8(-128, -128, -128, 0, -128, -128, -128, 4, -128, -128, -128, 8, -128, -128, -128, 12),
                   _mm_set1_epi32(kByte << 24));
  return {_mm512_shuffle_epi8(a.v, _mm512_broadcast_i32x4(from))};
}
COLUBER_INLINE Vec to_float(VecCodes a) { return {_mm512_cvtepi32_ps(a.v)}; }
COLUBER_INLINE Vec float_of_bits(VecCodes a) { return {_mm512_castsi512_ps(a.v)}; }
// kLanes single bytes.
COLUBER_INLINE VecCodes load_unsigned_bytes(const std::byte* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
COLUBER_INLINE VecCodes load_unsigned_words(const std::byte* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// kLanes float8_e4m3fn values divided by 256, as float16 has their bits; the two NaN are taken for numbers.
COLUBER_INLINE Vec load_e4m3_256th(const std::byte* p) {
  __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 7);
  return {_mm512_cvtph_ps(_mm256_and_si256(h, _mm256_set1_epi16(static_cast<int16_t>(0xbfff))))};
}
COLUBER_INLINE Vec load_e5m2(const std::byte* p) {
  __m256i h = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_cvtph_ps(_mm256_slli_epi16(h, 8))};
}
// table[code & 15] of sixteen floats.
struct VecTable {
  __m512 v;
};
COLUBER_INLINE VecTable load_table(const float* table) { return {_mm512_loadu_ps(table)}; }
COLUBER_INLINE Vec look_up(const VecTable& table, VecCodes codes) { return {_mm512_permutexvar_ps(codes.v, table.v)}; }
// A table of whole numbers for the nibbles of four bytes, which gives them times 2^24: sixteen values fit one register
// here, which takes fewer operations than bytes do.
struct VecNibbles {
  __m512 v;
};
COLUBER_INLINE VecNibbles load_nibbles(const int8_t* table) {
  __m512i values = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm512_cvtepi32_ps(_mm512_slli_epi32(values, 24))};
}
struct FourNibbles {
  __m512 table;
  __m512i v;
};
template <bool kHigh>
COLUBER_INLINE FourNibbles nibbles_of(const VecNibbles& table, VecCodes a) {
  return {table.v, a.v};
}
// Of byte kByte.
template <int kByte, bool kHigh>
COLUBER_INLINE Vec nibble(const FourNibbles& a) {
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(a.v, 8 * kByte + (kHigh ? 4 : 0)), a.table)};
}
// The word at `table` + kScale * index of each lane.
template <int kScale>
COLUBER_INLINE VecCodes gather_words(const int8_t* table, VecCodes index) {
  return {_mm512_i32gather_epi32(index.v, table, kScale)};
}
#else
struct VecCodes {
  __m256i v;
};
COLUBER_INLINE VecCodes load_codes(const std::byte* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
COLUBER_INLINE VecCodes set1_codes(uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x))}; }
COLUBER_INLINE VecCodes operator&(VecCodes a, VecCodes b) { return {_mm256_and_si256(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator|(VecCodes a, VecCodes b) { return {_mm256_or_si256(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator^(VecCodes a, VecCodes b) { return {_mm256_xor_si256(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator-(VecCodes a, VecCodes b) { return {_mm256_sub_epi32(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator*(VecCodes a, VecCodes b) { return {_mm256_mullo_epi32(a.v, b.v)}; }
COLUBER_INLINE VecCodes operator>>(VecCodes a, int n) { return {_mm256_srlv_epi32(a.v, _mm256_set1_epi32(n))}; }
template <int kBits>
COLUBER_INLINE VecCodes shift_right(VecCodes a) {
  return {_mm256_srli_epi32(a.v, kBits)};
}
template <int kBits>
COLUBER_INLINE VecCodes shift_left(VecCodes a) {
  return {_mm256_slli_epi32(a.v, kBits)};
}
COLUBER_INLINE VecCodes max_codes(VecCodes a, VecCodes b) { return {_mm256_max_epi32(a.v, b.v)}; }
COLUBER_INLINE VecCodes sub_bytes(VecCodes a, VecCodes b) { return {_mm256_sub_epi8(a.v, b.v)}; }
COLUBER_INLINE VecCodes load_byte_table(const int8_t* table) {
  return {_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)))};
}
COLUBER_INLINE VecCodes look_up_bytes(VecCodes table, VecCodes codes) {
  return {_mm256_shuffle_epi8(table.v, codes.v)};
}
template <int kByte>
COLUBER_INLINE VecCodes top_byte(VecCodes a) {
  // Shifts would compete with the multiply-adds for their two ports; a shuffle and a mask do not.
  if constexpr (kByte == 3) return {_mm256_and_si256(a.v, _mm256_set1_epi32(static_cast<int>(0xff000000u)))};
  const __m128i from =
      _mm_add_epi8(_mm_setr_epi8(-128, -128, -128, 0, -128, -128, -128, 4, -128, -128, -128, 8, -128, -128, -128, 12),
                   _mm_set1_epi32(kByte << 24));
  return {_mm256_shuffle_epi8(a.v, _mm256_broadcastsi128_si256(from))};
}
COLUBER_INLINE Vec to_float(VecCodes a) { return {_mm256_cvtepi32_ps(a.v)}; }
COLUBER_INLINE Vec float_of_bits(VecCodes a) { return {_mm256_castsi256_ps(a.v)}; }
COLUBER_INLINE __m128i load_eight_bytes(const std::byte* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
COLUBER_INLINE VecCodes load_unsigned_bytes(const std::byte* p) { return {_mm256_cvtepu8_epi32(load_eight_bytes(p))}; }
COLUBER_INLINE VecCodes load_unsigned_words(const std::byte* p) {
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
COLUBER_INLINE Vec load_e4m3_256th(const std::byte* p) {
  __m128i h = _mm_slli_epi16(_mm_cvtepi8_epi16(load_eight_bytes(p)), 7);
  return {_mm256_cvtph_ps(_mm_and_si128(h, _mm_set1_epi16(static_cast<int16_t>(0xbfff))))};
}
COLUBER_INLINE Vec load_e5m2(const std::byte* p) {
  return {_mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), load_eight_bytes(p)))};
}
struct VecTable {
  __m256 low, high;
};
COLUBER_INLINE VecTable load_table(const float* table) { return {_mm256_loadu_ps(table), _mm256_loadu_ps(table + 8)}; }
COLUBER_INLINE Vec look_up(const VecTable& table, VecCodes codes) {
  const __m256 low = _mm256_permutevar8x32_ps(table.low, codes.v), high = _mm256_permutevar8x32_ps(table.high, codes.v);
  return {_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes.v, 28)))};
}
struct VecNibbles {
  VecCodes table;
};
COLUBER_INLINE VecNibbles load_nibbles(const int8_t* table) { return {load_byte_table(table)}; }
struct FourNibbles {
  VecCodes bytes;
};
template <bool kHigh>
COLUBER_INLINE FourNibbles nibbles_of(const VecNibbles& table, VecCodes a) {
  if constexpr (kHigh) a = shift_right<4>(a);
  return {look_up_bytes(table.table, a & set1_codes(0x0f0f0f0f))};
}
template <int kByte, bool kHigh>
COLUBER_INLINE Vec nibble(const FourNibbles& a) {
  return to_float(top_byte<kByte>(a.bytes));
}
template <int kScale>
COLUBER_INLINE VecCodes gather_words(const int8_t* table, VecCodes index) {
  return {_mm256_i32gather_epi32(reinterpret_cast<const int*>(table), index.v, kScale)};
}
#endif
