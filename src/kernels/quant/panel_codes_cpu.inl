// SPDX-License-Identifier: Apache-2.0
// Expands panels of blocks, type by type, or multiplies them without. A code gives kPart successive k of one group,
// `lane` the first of kLanes of its rows: it reads the scales when it is made and then gives kUnit vectors of weights
// at a time, in order of k. (The others only expand.) Whole numbers take one way: four bytes of a row's codes
// become four signed bytes by a few operations for all four, each is moved to the top of its word by one shuffle or
// mask, converted, and multiplied by a scale that brings 2^-24 with it (a power of two: exact). Nibbles may come from a
// table of floats instead.
#include "kernels/simd/vec_codes.inl"

inline constexpr float kTop = 0x1p-24f;
inline constexpr int8_t kAsIs[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
inline constexpr int8_t kLess8[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

// The unit at byte `offset` of the rows' blocks.
COLUBER_INLINE VecCodes words_at(const std::byte* group, int64_t offset, int64_t lane) {
  return load_codes(group + PanelForm::kRows * offset + 4 * lane);
}
COLUBER_INLINE Vec halves_at(const std::byte* group, int64_t offset, int64_t lane) {
  return load_f16(reinterpret_cast<const uint16_t*>(group + PanelForm::kRows * offset + 2 * lane));
}
COLUBER_INLINE Vec floats_at(const std::byte* group, int64_t offset, int64_t lane) {
  return load(reinterpret_cast<const float*>(group + PanelForm::kRows * offset + 4 * lane));
}
COLUBER_INLINE VecCodes bytes_of(uint8_t x) { return set1_codes(x * 0x01010101u); }
COLUBER_INLINE VecCodes low_nibbles(VecCodes x) { return x & bytes_of(0x0f); }
COLUBER_INLINE VecCodes high_nibbles(VecCodes x) { return shift_right<4>(x) & bytes_of(0x0f); }

// From a code times 2^24 to a weight.
struct Times {
  Vec scale;
  COLUBER_INLINE explicit Times(Vec exact) : scale(exact * set1(kTop)) {}
  COLUBER_INLINE Vec operator()(Vec code) const { return code * scale; }
};
struct TimesPlus {
  Vec scale, offset;
  COLUBER_INLINE TimesPlus(Vec exact, Vec plus) : scale(exact * set1(kTop)), offset(plus) {}
  COLUBER_INLINE Vec operator()(Vec code) const { return fma(code, scale, offset); }
};
struct LessTimes {
  Vec zero_point, scale;
  COLUBER_INLINE LessTimes(Vec less, Vec exact) : zero_point(less), scale(exact * set1(kTop)) {}
  COLUBER_INLINE Vec operator()(Vec code) const { return (code - zero_point) * scale; }
};

// The four codes of each row to k, k + step, ... from `out`.
template <typename ToWeight>
COLUBER_INLINE void put_four(VecCodes codes, const ToWeight& weight, float* out, int64_t step) {
  store(out, weight(to_float(top_byte<0>(codes))));
  store(out + step, weight(to_float(top_byte<1>(codes))));
  store(out + 2 * step, weight(to_float(top_byte<2>(codes))));
  store(out + 3 * step, weight(to_float(top_byte<3>(codes))));
}

// The same in registers.
template <typename ToWeight>
COLUBER_INLINE void four_bytes(VecCodes codes, const ToWeight& weight, Vec (&out)[4]) {
  out[0] = weight(to_float(top_byte<0>(codes)));
  out[1] = weight(to_float(top_byte<1>(codes)));
  out[2] = weight(to_float(top_byte<2>(codes)));
  out[3] = weight(to_float(top_byte<3>(codes)));
}
// Of nibbles, the low or the high ones of the four bytes, by a table.
template <bool kHigh, typename ToWeight>
COLUBER_INLINE void four_nibbles(VecCodes codes, const VecNibbles& table, const ToWeight& weight, Vec (&out)[4]) {
  const FourNibbles four = nibbles_of<kHigh>(table, codes);
  out[0] = weight(nibble<0, kHigh>(four));
  out[1] = weight(nibble<1, kHigh>(four));
  out[2] = weight(nibble<2, kHigh>(four));
  out[3] = weight(nibble<3, kHigh>(four));
}

// Bytes in order of k.
template <typename ToWeight>
struct Bytes {
  static constexpr int kUnit = 4;
  ToWeight weight;
  const std::byte* words;
  COLUBER_INLINE Bytes(ToWeight to_weight, const std::byte* group, int64_t offset, int64_t lane)
      : weight(to_weight), words(group + PanelForm::kRows * offset + 4 * lane) {}
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[4]) const {
    four_bytes(load_codes(words + PanelForm::kRows * 4 * kIndex), weight, out);
  }
};
struct CodeQ80 : Bytes<Times> {
  static constexpr int64_t kPart = 32;
  COLUBER_INLINE CodeQ80(const std::byte* group, int64_t, int64_t lane)
      : Bytes(Times(halves_at(group, 0, lane)), group, 2, lane) {}
};

// The same of nibbles, the low or the high ones of the four bytes, by a table.
template <bool kHigh, typename ToWeight>
COLUBER_INLINE void put_four_nibbles(VecCodes codes, const VecNibbles& table, const ToWeight& weight, float* out,
                                     int64_t step) {
  const FourNibbles four = nibbles_of<kHigh>(table, codes);
  store(out, weight(nibble<0, kHigh>(four)));
  store(out + step, weight(nibble<1, kHigh>(four)));
  store(out + 2 * step, weight(nibble<2, kHigh>(four)));
  store(out + 3 * step, weight(nibble<3, kHigh>(four)));
}

// Blocks of 32 whose sixteen bytes at `offset` hold the first half in low nibbles, the other in high ones.
template <typename ToWeight>
COLUBER_INLINE void put_halves(const std::byte* group, int64_t offset, int64_t lane, const int8_t* values,
                               const ToWeight& weight, float* out, int64_t width) {
  const VecNibbles table = load_nibbles(values);
  for (int64_t u = 0; u < 4; ++u) {
    const VecCodes x = words_at(group, offset + 4 * u, lane);
    put_four_nibbles<false>(x, table, weight, out + 4 * u * width, width);
    put_four_nibbles<true>(x, table, weight, out + (16 + 4 * u) * width, width);
  }
}
// The same for those that give weights in order of k: the low nibbles of all words first.
template <typename ToWeight>
struct Halves {
  static constexpr int kUnit = 4;
  ToWeight weight;
  VecNibbles table;
  const std::byte* words;
  COLUBER_INLINE Halves(ToWeight to_weight, const int8_t* values, const std::byte* group, int64_t offset, int64_t lane)
      : weight(to_weight), table(load_nibbles(values)), words(group + PanelForm::kRows * offset + 4 * lane) {}
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[4]) const {
    four_nibbles<kIndex >= 4>(load_codes(words + PanelForm::kRows * 4 * (kIndex % 4)), table, weight, out);
  }
};
// Blocks of 32 with a fifth bit from a word that has bit i for element i.
template <typename ToWeight>
COLUBER_INLINE void put_fives(const std::byte* group, int64_t offset, int64_t lane, uint8_t less,
                              const ToWeight& weight, float* out, int64_t width) {
  const VecCodes fifths = words_at(group, offset, lane);
  for (int64_t u = 0; u < 8; ++u) {
    const VecCodes four = (fifths >> static_cast<int>(4 * u)) & set1_codes(0xf);
    // The product moves bit i to byte i.
    const VecCodes high = shift_left<4>(four * set1_codes(0x00204081) & set1_codes(0x01010101));
    const VecCodes x = words_at(group, offset + 4 + 4 * (u % 4), lane);
    const VecCodes low = u < 4 ? low_nibbles(x) : high_nibbles(x);
    put_four(sub_bytes(low | high, bytes_of(less)), weight, out + 4 * u * width, width);
  }
}

struct CodeQ40 : Halves<Times> {
  static constexpr int64_t kPart = 32;
  COLUBER_INLINE CodeQ40(const std::byte* group, int64_t, int64_t lane)
      : Halves(Times(halves_at(group, 0, lane)), kLess8, group, 2, lane) {}
};
struct CodeQ41 : Halves<TimesPlus> {
  static constexpr int64_t kPart = 32;
  COLUBER_INLINE CodeQ41(const std::byte* group, int64_t, int64_t lane)
      : Halves(TimesPlus(halves_at(group, 0, lane), halves_at(group, 2, lane)), kAsIs, group, 4, lane) {}
};
struct CodeQ50 {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t, int64_t lane, float* out, int64_t width) {
    put_fives(group, 2, lane, 16, Times(halves_at(group, 0, lane)), out, width);
  }
};
struct CodeQ51 {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t, int64_t lane, float* out, int64_t width) {
    const TimesPlus weight(halves_at(group, 0, lane), halves_at(group, 2, lane));
    put_fives(group, 4, lane, 0, weight, out, width);
  }
};
struct CodeIq4Nl : Halves<Times> {
  static constexpr int64_t kPart = 32;
  COLUBER_INLINE CodeIq4Nl(const std::byte* group, int64_t, int64_t lane)
      : Halves(Times(halves_at(group, 0, lane)), kIq4Values, group, 2, lane) {}
};
struct CodeMxfp4 : Halves<Times> {
  static constexpr int64_t kPart = 32;
  COLUBER_INLINE CodeMxfp4(const std::byte* group, int64_t, int64_t lane)
      : Halves(Times(scale(group, lane)), kE2M1Doubled, group, 1, lane) {}
  // 2^(e - 128), as the table is doubled; smaller ones than the least regular belong to zeros.
  static COLUBER_INLINE Vec scale(const std::byte* group, int64_t lane) {
    const VecCodes exponent = max_codes(load_unsigned_bytes(group + lane), set1_codes(kLeastMxfp4Exponent));
    return float_of_bits(shift_left<23>(exponent - set1_codes(1)));
  }
};

// A signed or unsigned byte of each row's word as a number.
COLUBER_INLINE Vec signed_byte(VecCodes words, int64_t byte) {
  return to_float(shift_left<24>(words >> static_cast<int>(8 * byte))) * set1(kTop);
}

// The scale and minimum of part j of eight, Q4_K and Q5_K.
COLUBER_INLINE TimesPlus k_scales(const std::byte* group, int64_t j, int64_t lane) {
  const VecCodes low = words_at(group, 4, lane), minima = words_at(group, 8, lane);
  const int shift = static_cast<int>(8 * (j % 4));
  VecCodes s, m;
  if (j < 4) {
    s = (low >> shift) & set1_codes(0x3f);
    m = (minima >> shift) & set1_codes(0x3f);
  } else {
    const VecCodes tops = words_at(group, 12, lane) >> shift;
    s = (tops & set1_codes(0xf)) | ((low >> (shift + 2)) & set1_codes(0x30));
    m = (shift_right<4>(tops) & set1_codes(0xf)) | ((minima >> (shift + 2)) & set1_codes(0x30));
  }
  return {halves_at(group, 0, lane) * to_float(s), halves_at(group, 2, lane) * set1(-1.0f) * to_float(m)};
}
struct CodeQ4K {
  static constexpr int64_t kPart = 32;
  static constexpr int kUnit = 4;
  TimesPlus weight;
  VecNibbles table;
  int shift;  // to the nibbles of this part: two parts share their bytes
  const std::byte* words;
  COLUBER_INLINE CodeQ4K(const std::byte* group, int64_t part, int64_t lane)
      : weight(k_scales(group, part, lane)),
        table(load_nibbles(kAsIs)),
        shift(static_cast<int>(4 * (part % 2))),
        words(group + PanelForm::kRows * (16 + 32 * (part / 2)) + 4 * lane) {}
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[4]) const {
    four_nibbles<false>(load_codes(words + PanelForm::kRows * 4 * kIndex) >> shift, table, weight, out);
  }
};
struct CodeQ5K {
  static constexpr int64_t kPart = 32;
  static constexpr int kUnit = 4;
  TimesPlus weight;
  int shift, fifth;
  const std::byte *words, *fifths;
  COLUBER_INLINE CodeQ5K(const std::byte* group, int64_t part, int64_t lane)
      : weight(k_scales(group, part, lane)),
        shift(static_cast<int>(4 * (part % 2))),
        fifth(static_cast<int>(part)),
        words(group + PanelForm::kRows * (48 + 32 * (part / 2)) + 4 * lane),
        fifths(group + PanelForm::kRows * 16 + 4 * lane) {}
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[4]) const {
    const VecCodes low = low_nibbles(load_codes(words + PanelForm::kRows * 4 * kIndex) >> shift);
    const VecCodes top = (load_codes(fifths + PanelForm::kRows * 4 * kIndex) >> fifth) & bytes_of(1);
    four_bytes(low | shift_left<4>(top), weight, out);
  }
};
struct CodeQ6K {
  static constexpr int64_t kPart = 32;
  static constexpr int kUnit = 4;
  Times first, second;  // sixteen each
  int shift, top_shift;
  const std::byte *words, *tops;
  COLUBER_INLINE CodeQ6K(const std::byte* group, int64_t part, int64_t lane)
      : first(scale(group, part, 0, lane)),
        second(scale(group, part, 1, lane)),
        shift(static_cast<int>(4 * (part % 4 / 2))),
        top_shift(static_cast<int>(2 * (part % 4))),
        words(group + PanelForm::kRows * (64 * (part / 4) + 32 * (part % 2)) + 4 * lane),
        tops(group + PanelForm::kRows * (128 + 32 * (part / 4)) + 4 * lane) {}
  static COLUBER_INLINE Times scale(const std::byte* group, int64_t part, int64_t sixteen, int64_t lane) {
    const VecCodes scales = words_at(group, 192 + 4 * (part / 2), lane);
    return Times(halves_at(group, 208, lane) * signed_byte(scales, 2 * (part % 2) + sixteen));
  }
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[4]) const {
    const VecCodes low = low_nibbles(load_codes(words + PanelForm::kRows * 4 * kIndex) >> shift);
    const VecCodes top = (load_codes(tops + PanelForm::kRows * 4 * kIndex) >> top_shift) & bytes_of(3);
    four_bytes(sub_bytes(low | shift_left<4>(top), bytes_of(32)), kIndex < 4 ? first : second, out);
  }
};
// Two bits of each element: four successive runs of 32 share the 32 bytes of their half.
COLUBER_INLINE VecCodes two_bits(const std::byte* group, int64_t offset, int64_t part, int64_t unit, int64_t lane) {
  return (words_at(group, offset + 32 * (part / 4) + 4 * unit, lane) >> static_cast<int>(2 * (part % 4))) & bytes_of(3);
}
struct CodeQ2K {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const Vec d = halves_at(group, 80, lane), minus = halves_at(group, 82, lane) * set1(-1.0f);
    const VecCodes scales = words_at(group, 4 * (part / 2), lane);
    for (int64_t sixteen = 0; sixteen < 2; ++sixteen) {
      const VecCodes both = scales >> static_cast<int>(8 * (2 * (part % 2) + sixteen));
      const TimesPlus weight(d * to_float(both & set1_codes(0xf)),
                             minus * to_float(shift_right<4>(both) & set1_codes(0xf)));
      for (int64_t u = 4 * sixteen; u < 4 * sixteen + 4; ++u)
        put_four(two_bits(group, 16, part, u, lane), weight, out + 4 * u * width, width);
    }
  }
};
struct CodeQ3K {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE Vec scale(const std::byte* group, int64_t sixteenth, int64_t lane) {
    const VecCodes low = words_at(group, 96 + sixteenth % 8 / 4 * 4, lane), high = words_at(group, 104, lane);
    const int byte = static_cast<int>(8 * (sixteenth % 4));
    const VecCodes four = (low >> (byte + static_cast<int>(sixteenth / 8 * 4))) & set1_codes(0xf);
    const VecCodes two = (high >> (byte + static_cast<int>(sixteenth / 4 * 2))) & set1_codes(3);
    return to_float((four | shift_left<4>(two)) - set1_codes(32));
  }
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const Vec d = halves_at(group, 108, lane);
    for (int64_t sixteen = 0; sixteen < 2; ++sixteen) {
      const Times weight(d * scale(group, 2 * part + sixteen, lane));
      for (int64_t u = 4 * sixteen; u < 4 * sixteen + 4; ++u) {
        const VecCodes third = (words_at(group, 4 * u, lane) >> static_cast<int>(part)) & bytes_of(1);
        const VecCodes code = two_bits(group, 32, part, u, lane) | shift_left<2>(third);
        put_four(sub_bytes(code, bytes_of(4)), weight, out + 4 * u * width, width);
      }
    }
  }
};
struct CodeTq20 {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const Times weight(halves_at(group, 64, lane));
    for (int64_t u = 0; u < 8; ++u)
      put_four(sub_bytes(two_bits(group, 0, part, u, lane), bytes_of(1)), weight, out + 4 * u * width, width);
  }
};
struct CodeIq4Xs {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const VecCodes high = load_unsigned_words(group + PanelForm::kRows * 2 + 2 * lane);
    const VecCodes low = words_at(group, 4, lane);
    const VecCodes scale = ((low >> static_cast<int>(4 * part)) & set1_codes(0xf)) |
                           shift_left<4>((high >> static_cast<int>(2 * part)) & set1_codes(3));
    const Times weight(halves_at(group, 0, lane) * to_float(scale - set1_codes(32)));
    put_halves(group, 8 + 16 * part, lane, kIq4Values, weight, out, width);
  }
};

// Groups that share a float32 scale: sixteen elements at a time, which every size of group is made of.
struct CodeInt8 : Bytes<Times> {
  static constexpr int64_t kPart = 16;
  COLUBER_INLINE CodeInt8(const std::byte* group, int64_t part, int64_t lane)
      : Bytes(Times(floats_at(group, 0, lane)), group, 4 + 16 * part, lane) {}
};
struct CodeUInt8 {
  static constexpr int64_t kPart = 16;
  static constexpr int kUnit = 4;
  LessTimes weight;
  const std::byte* words;
  COLUBER_INLINE CodeUInt8(const std::byte* group, int64_t part, int64_t lane)
      : weight(to_float(shift_left<24>(zero_point(group, lane))), floats_at(group, 0, lane)),
        words(group + PanelForm::kRows * (5 + 16 * part) + 4 * lane) {}
  // It and the codes less 128: what a signed byte holds.
  static COLUBER_INLINE VecCodes zero_point(const std::byte* group, int64_t lane) {
    return load_unsigned_bytes(group + PanelForm::kRows * 4 + lane) - set1_codes(128);
  }
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[4]) const {
    four_bytes(load_codes(words + PanelForm::kRows * 4 * kIndex) ^ bytes_of(0x80), weight, out);
  }
};
// Two fours in turn.
COLUBER_INLINE void interleave(const Vec (&even)[4], const Vec (&odd)[4], Vec (&out)[8]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = even[i];
    out[2 * i + 1] = odd[i];
  }
}
// Nibbles in the order of k, the low one of a byte first.
struct Successive {
  static constexpr int kUnit = 8;
  Times weight;
  VecNibbles table;
  const std::byte* words;
  COLUBER_INLINE Successive(Vec scale, const int8_t* values, const std::byte* group, int64_t part, int64_t lane)
      : weight(scale), table(load_nibbles(values)), words(group + PanelForm::kRows * (4 + 8 * part) + 4 * lane) {}
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[8]) const {
    const VecCodes x = load_codes(words + PanelForm::kRows * 4 * kIndex);
    Vec even[4], odd[4];
    four_nibbles<false>(x, table, weight, even);
    four_nibbles<true>(x, table, weight, odd);
    interleave(even, odd, out);
  }
};
struct CodeInt4 : Successive {
  static constexpr int64_t kPart = 16;
  COLUBER_INLINE CodeInt4(const std::byte* group, int64_t part, int64_t lane)
      : Successive(floats_at(group, 0, lane), kLess8, group, part, lane) {}
};
struct CodeE2M1 : Successive {
  static constexpr int64_t kPart = 16;
  // Its table is doubled.
  COLUBER_INLINE CodeE2M1(const std::byte* group, int64_t part, int64_t lane)
      : Successive(floats_at(group, 0, lane) * set1(0.5f), kE2M1Doubled, group, part, lane) {}
};
struct CodeUInt4 {
  static constexpr int64_t kPart = 16;
  static constexpr int kUnit = 8;
  Times weight;
  VecCodes zero_point;
  const std::byte* words;
  COLUBER_INLINE CodeUInt4(const std::byte* group, int64_t part, int64_t lane)
      : weight(floats_at(group, 0, lane)),
        zero_point(load_unsigned_bytes(group + PanelForm::kRows * 4 + lane) * set1_codes(0x01010101)),
        words(group + PanelForm::kRows * (5 + 8 * part) + 4 * lane) {}
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[8]) const {
    const VecCodes x = load_codes(words + PanelForm::kRows * 4 * kIndex);
    Vec even[4], odd[4];
    four_bytes(sub_bytes(low_nibbles(x), zero_point), weight, even);
    four_bytes(sub_bytes(high_nibbles(x), zero_point), weight, odd);
    interleave(even, odd, out);
  }
};
// Any sixteen values.
template <ScaledCode kCode>
struct CodeTable {
  static constexpr int64_t kPart = 16;
  static constexpr int kUnit = 8;
  Vec scale;
  VecTable table;
  const std::byte* words;
  COLUBER_INLINE CodeTable(const std::byte* group, int64_t part, int64_t lane)
      : scale(floats_at(group, 0, lane)),
        table(load_table(nibble_table<kCode>())),
        words(group + PanelForm::kRows * (4 + 8 * part) + 4 * lane) {}
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[8]) const {
    look_up(table, load_codes(words + PanelForm::kRows * 4 * kIndex), out);
#pragma GCC unroll 8
    for (Vec& value : out) value = value * scale;
  }
};
// Bytes whose units are single bytes: one load is one k.
template <Vec (*kLoad)(const std::byte*)>
struct SingleBytes {
  static constexpr int64_t kPart = 16;
  static constexpr int kUnit = 4;
  Vec scale;
  const std::byte* codes;
  COLUBER_INLINE SingleBytes(Vec exact, const std::byte* group, int64_t part, int64_t lane)
      : scale(exact), codes(group + PanelForm::kRows * (4 + 16 * part) + lane) {}
  template <int kIndex>
  COLUBER_INLINE void weights(Vec (&out)[4]) const {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) out[i] = kLoad(codes + PanelForm::kRows * (4 * kIndex + i)) * scale;
  }
};
struct CodeE4M3 : SingleBytes<load_e4m3_256th> {
  COLUBER_INLINE CodeE4M3(const std::byte* group, int64_t part, int64_t lane)
      : SingleBytes(floats_at(group, 0, lane) * set1(256.0f), group, part, lane) {}
};
struct CodeE5M2 : SingleBytes<load_e5m2> {
  COLUBER_INLINE CodeE5M2(const std::byte* group, int64_t part, int64_t lane)
      : SingleBytes(floats_at(group, 0, lane), group, part, lane) {}
};

#include "kernels/quant/panel_lattice_cpu.inl"

template <typename Code>
inline constexpr bool kGivesWeights = requires { Code::kUnit; };
template <typename Code>
using Indices = std::make_integer_sequence<int, static_cast<int>(Code::kPart) / Code::kUnit>;

template <typename Code, int... kIndex>
COLUBER_INLINE void expand_part(std::integer_sequence<int, kIndex...>, const Code& code, float* out, int64_t width) {
  const auto expand_unit = [&]<int kAt>() __attribute__((always_inline)) {
    Vec weights[Code::kUnit];
    code.template weights<kAt>(weights);
#pragma GCC unroll 8
    for (int i = 0; i < Code::kUnit; ++i) store(out + (kAt * Code::kUnit + i) * width, weights[i]);
  };
  (expand_unit.template operator()<kIndex>(), ...);
}

// How a panel is walked: part by part, in each strip by strip and kLanes rows by kLanes rows.
template <typename Code>
struct PanelWalk {
  int64_t group_bytes, next_groups, parts, part_bytes, strips;
  const std::byte* groups;
  int64_t part;
  const std::byte* ahead = nullptr;

  COLUBER_INLINE PanelWalk(const PanelBlocks& from, int64_t first_strip, int64_t count_of_strips, int64_t first) {
    const auto elements = static_cast<uint32_t>(from.elements), start = static_cast<uint32_t>(first);
    group_bytes = PanelForm::kRows * from.bytes;
    next_groups = from.strips * group_bytes;
    parts = elements / Code::kPart;
    part_bytes = group_bytes / parts;
    strips = count_of_strips;
    groups = from.data + start / elements * next_groups + first_strip * group_bytes;
    part = start % elements / Code::kPart;
    begin();
  }
  // More than a block of all strips, whose bytes are wanted in no order: a nearer distance misses (measured: Q6_K a
  // third slower).
  COLUBER_INLINE void begin() {
    constexpr int64_t kAheadBytes = 4096;
    ahead = groups + strips * part * part_bytes + std::max(kAheadBytes, strips * group_bytes + 1024);
  }
  COLUBER_INLINE void next() {
    if (++part == parts) part = 0, groups += next_groups;
    begin();
  }
  // What `rows` rows of a part take. Little by little: a whole part at once would want more lines than a core can wait
  // for (measured: 15 % slower).
  COLUBER_INLINE void fetch(int64_t rows) {
    const int64_t bytes = rows * part_bytes / PanelForm::kRows;
    for (int64_t i = 0; i < bytes; i += 64) prefetch_l2(ahead + i);
    ahead += bytes;
  }
};

template <typename Code>
void expand_panel(const PanelBlocks& from, int64_t first_strip, int64_t strips, int64_t first, int64_t count,
                  float* out) {
  const int64_t width = PanelForm::kRows * strips;
  PanelWalk<Code> walk(from, first_strip, strips, first);
  for (; count > 0; count -= Code::kPart, out += Code::kPart * width, walk.next()) {
    for (int64_t row = 0; row < width; row += kLanes) {
      walk.fetch(kLanes);
      const std::byte* group = walk.groups + row / PanelForm::kRows * walk.group_bytes;
      if constexpr (kGivesWeights<Code>) {
        expand_part(Indices<Code>(), Code(group, walk.part, row % PanelForm::kRows), out + row, width);
      } else {
        Code::expand(group, walk.part, row % PanelForm::kRows, out + row, width);
      }
    }
  }
}

// Adds a part of sizeof...(kChain) vectors of rows to their sums. These wait for each other, so that one sum alone
// would take as long as a multiply-add each; from registers, as what is stored first is multiplied a while later, when
// the sums have nothing to do until then.
template <typename Code, int... kIndex, int... kChain>
COLUBER_INLINE void multiply_part(std::integer_sequence<int, kIndex...>, std::integer_sequence<int, kChain...>,
                                  const std::byte* group, int64_t group_bytes, int64_t part, const float* a,
                                  float* sums) {
  constexpr int64_t kRows = PanelForm::kRows;
  const Code codes[] = {Code(group + kChain * kLanes / kRows * group_bytes, part, kChain * kLanes % kRows)...};
  Vec sum[] = {load(sums + kChain * kLanes)...};
  const auto multiply_unit = [&]<int kAt, int kOf>() __attribute__((always_inline)) {
    Vec weights[Code::kUnit];
    codes[kOf].template weights<kAt>(weights);
#pragma GCC unroll 8
    for (int i = 0; i < Code::kUnit; ++i) sum[kOf] = fma(set1(a[kAt * Code::kUnit + i]), weights[i], sum[kOf]);
  };
  const auto multiply_units = [&]<int kAt>() __attribute__((always_inline)) {
    (multiply_unit.template operator()<kAt, kChain>(), ...);
  };
  (multiply_units.template operator()<kIndex>(), ...);
  (store(sums + kChain * kLanes, sum[kChain]), ...);
}

template <typename Code, int kChains>
void multiply_rows(const PanelBlocks& from, int64_t first_strip, int64_t strips, const float* a, int64_t count,
                   float* sums) {
  PanelWalk<Code> walk(from, first_strip, strips, 0);
  for (; count > 0; count -= Code::kPart, a += Code::kPart, walk.next()) {
    for (int64_t row = 0; row < PanelForm::kRows * strips; row += kChains * kLanes) {
      walk.fetch(kChains * kLanes);
      multiply_part<Code>(Indices<Code>(), std::make_integer_sequence<int, kChains>(),
                          walk.groups + row / PanelForm::kRows * walk.group_bytes, walk.group_bytes, walk.part, a,
                          sums + row);
    }
  }
}
template <typename Code>
void multiply_panel(const PanelBlocks& from, int64_t first_strip, int64_t strips, const float* a, int64_t count,
                    float* sums) {
  constexpr int kStripVectors = static_cast<int>(PanelForm::kRows) / kLanes;
  for (int64_t row = 0; row < PanelForm::kRows * strips; row += kLanes) store(sums + row, zero());
  if constexpr (kLanes == 16) {
    if (strips == 4) return multiply_rows<Code, 4>(from, first_strip, strips, a, count, sums);
  }
  multiply_rows<Code, kStripVectors>(from, first_strip, strips, a, count, sums);
}

template <typename Code>
constexpr PanelFunctions functions_of() {
  if constexpr (kGivesWeights<Code>) {
    return {expand_panel<Code>, multiply_panel<Code>};
  } else {
    return {expand_panel<Code>, nullptr};
  }
}
