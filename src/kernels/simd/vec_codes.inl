// SPDX-License-Identifier: Apache-2.0
// Codes of quantised weights over the tier's vector type: kLanes rows side by side, four bytes each, and what turns
// their bytes into float32. Conversions are exact, denormals included, and none is slow for some values. Include
// kernels/simd/nibble_table.h above the source that includes this.
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
// A table of sixteen floats.
struct VecTable {
  __m512 v;
};
COLUBER_INLINE VecTable load_table(const NibbleTable& table) { return {_mm512_loadu_ps(table.values)}; }
// The values of a word's eight nibbles, from the lowest.
COLUBER_INLINE void look_up(const VecTable& table, VecCodes codes, Vec (&out)[8]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    out[i] = {_mm512_permutexvar_ps(_mm512_srlv_epi32(codes.v, _mm512_set1_epi32(4 * i)), table.v)};
}
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
// As no register holds sixteen floats, each byte of a float has a table of its own; what they give is woven together.
struct VecTable {
  __m256i bytes[4];
};
COLUBER_INLINE VecTable load_table(const NibbleTable& table) {
  VecTable all;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    all.bytes[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table.bytes[i])));
  return all;
}
// The values of bytes below 16: byte i of each four rows side by side to out[2 * i].
COLUBER_INLINE void look_up_four(const VecTable& table, __m256i codes, Vec* out) {
  __m256i byte[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) byte[i] = _mm256_shuffle_epi8(table.bytes[i], codes);
  const __m256i low01 = _mm256_unpacklo_epi8(byte[0], byte[1]), low23 = _mm256_unpacklo_epi8(byte[2], byte[3]);
  const __m256i high01 = _mm256_unpackhi_epi8(byte[0], byte[1]), high23 = _mm256_unpackhi_epi8(byte[2], byte[3]);
  out[0] = {_mm256_castsi256_ps(_mm256_unpacklo_epi16(low01, low23))};
  out[2] = {_mm256_castsi256_ps(_mm256_unpackhi_epi16(low01, low23))};
  out[4] = {_mm256_castsi256_ps(_mm256_unpacklo_epi16(high01, high23))};
  out[6] = {_mm256_castsi256_ps(_mm256_unpackhi_epi16(high01, high23))};
}
COLUBER_INLINE void look_up(const VecTable& table, VecCodes codes, Vec (&out)[8]) {
  const __m256i low = _mm256_set1_epi8(0xf);
  const __m256i rows_together =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i x = _mm256_shuffle_epi8(codes.v, rows_together);
  look_up_four(table, _mm256_and_si256(x, low), out);
  look_up_four(table, _mm256_and_si256(_mm256_srli_epi32(x, 4), low), out + 1);
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
