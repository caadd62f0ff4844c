// SPDX-License-Identifier: Apache-2.0
// Expands panels of blocks, type by type. A code expands kPart successive k of one group, `lane` the first of kLanes of
// its rows. Whole numbers take one way: four bytes of a row's codes become four signed bytes by a few operations for
// all four, each is moved to the top of its word by one shuffle or mask, converted, and multiplied by a scale that
// brings 2^-24 with it (a power of two: exact). Nibbles may come from a table of floats instead.
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

struct CodeQ8_0 {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t, int64_t lane, float* out, int64_t width) {
    const Times weight(halves_at(group, 0, lane));
    for (int64_t u = 0; u < 8; ++u) put_four(words_at(group, 2 + 4 * u, lane), weight, out + 4 * u * width, width);
  }
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
// The same with a fifth bit from a word that has bit i for element i.
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

struct CodeQ4_0 {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t, int64_t lane, float* out, int64_t width) {
    put_halves(group, 2, lane, kLess8, Times(halves_at(group, 0, lane)), out, width);
  }
};
struct CodeQ4_1 {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t, int64_t lane, float* out, int64_t width) {
    const TimesPlus weight(halves_at(group, 0, lane), halves_at(group, 2, lane));
    put_halves(group, 4, lane, kAsIs, weight, out, width);
  }
};
struct CodeQ5_0 {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t, int64_t lane, float* out, int64_t width) {
    put_fives(group, 2, lane, 16, Times(halves_at(group, 0, lane)), out, width);
  }
};
struct CodeQ5_1 {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t, int64_t lane, float* out, int64_t width) {
    const TimesPlus weight(halves_at(group, 0, lane), halves_at(group, 2, lane));
    put_fives(group, 4, lane, 0, weight, out, width);
  }
};
struct CodeIq4Nl {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t, int64_t lane, float* out, int64_t width) {
    put_halves(group, 2, lane, kIq4Values, Times(halves_at(group, 0, lane)), out, width);
  }
};
struct CodeMxfp4 {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t, int64_t lane, float* out, int64_t width) {
    // 2^(e - 128), as its table is doubled; smaller ones than the least regular belong to zeros.
    const VecCodes exponent = max_codes(load_unsigned_bytes(group + lane), set1_codes(kLeastMxfp4Exponent));
    const Vec scale = float_of_bits(shift_left<23>(exponent - set1_codes(1)));
    put_halves(group, 1, lane, kE2M1Doubled, Times(scale), out, width);
  }
};

// A signed or unsigned byte of each row's word as a number.
COLUBER_INLINE Vec signed_byte(VecCodes words, int64_t byte) {
  return to_float(shift_left<24>(words >> static_cast<int>(8 * byte))) * set1(kTop);
}

// The scale and minimum of part j of eight, Q4_K and Q5_K.
struct KScales {
  Vec scale, minus_minimum;
  COLUBER_INLINE KScales(const std::byte* group, int64_t j, int64_t lane) {
    const VecCodes low = words_at(group, 4, lane), minima = words_at(group, 8, lane), tops = words_at(group, 12, lane);
    const int shift = static_cast<int>(8 * (j % 4));
    VecCodes s, m;
    if (j < 4) {
      s = (low >> shift) & set1_codes(0x3f);
      m = (minima >> shift) & set1_codes(0x3f);
    } else {
      s = ((tops >> shift) & set1_codes(0xf)) | ((low >> (shift + 2)) & set1_codes(0x30));
      m = ((tops >> (shift + 4)) & set1_codes(0xf)) | ((minima >> (shift + 2)) & set1_codes(0x30));
    }
    scale = halves_at(group, 0, lane) * to_float(s);
    minus_minimum = halves_at(group, 2, lane) * set1(-1.0f) * to_float(m);
  }
};
struct CodeQ4K {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const KScales scales(group, part, lane);
    const TimesPlus weight(scales.scale, scales.minus_minimum);
    const VecNibbles table = load_nibbles(kAsIs);
    for (int64_t u = 0; u < 8; ++u) {
      const VecCodes x = words_at(group, 16 + 32 * (part / 2) + 4 * u, lane);
      if (part % 2 == 0) {
        put_four_nibbles<false>(x, table, weight, out + 4 * u * width, width);
      } else {
        put_four_nibbles<true>(x, table, weight, out + 4 * u * width, width);
      }
    }
  }
};
struct CodeQ5K {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const KScales scales(group, part, lane);
    const TimesPlus weight(scales.scale, scales.minus_minimum);
    const int shift = static_cast<int>(4 * (part % 2));
    for (int64_t u = 0; u < 8; ++u) {
      const VecCodes low = low_nibbles(words_at(group, 48 + 32 * (part / 2) + 4 * u, lane) >> shift);
      const VecCodes fifth = (words_at(group, 16 + 4 * u, lane) >> static_cast<int>(part)) & bytes_of(1);
      put_four(low | shift_left<4>(fifth), weight, out + 4 * u * width, width);
    }
  }
};
struct CodeQ6K {
  static constexpr int64_t kPart = 32;
  template <int kQuarter>
  static COLUBER_INLINE void put(const std::byte* group, int64_t half, int64_t unit, int64_t lane, const Times& weight,
                                 float* out, int64_t width) {
    const VecCodes x = words_at(group, 64 * half + 32 * (kQuarter % 2) + 4 * unit, lane);
    const VecCodes tops = words_at(group, 128 + 32 * half + 4 * unit, lane);
    const VecCodes low = kQuarter < 2 ? low_nibbles(x) : high_nibbles(x);
    // Its two bits, from 2 * kQuarter of a byte, to the fifth and sixth.
    const VecCodes high = kQuarter < 2 ? shift_left < kQuarter<2 ? 4 - 2 * kQuarter : 0>(tops)
                                       : shift_right < kQuarter<2 ? 0 : 2 * kQuarter - 4>(tops);
    put_four(sub_bytes(low | (high & bytes_of(0x30)), bytes_of(32)), weight, out + 4 * unit * width, width);
  }
  template <int kQuarter>
  static COLUBER_INLINE void put_part(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const Vec d = halves_at(group, 208, lane);
    const VecCodes scales = words_at(group, 192 + 4 * (part / 2), lane);
    for (int64_t sixteen = 0; sixteen < 2; ++sixteen) {
      const Times weight(d * signed_byte(scales, 2 * (kQuarter % 2) + sixteen));
      for (int64_t u = 4 * sixteen; u < 4 * sixteen + 4; ++u)
        put<kQuarter>(group, part / 4, u, lane, weight, out, width);
    }
  }
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    switch (part % 4) {
      case 0:
        return put_part<0>(group, part, lane, out, width);
      case 1:
        return put_part<1>(group, part, lane, out, width);
      case 2:
        return put_part<2>(group, part, lane, out, width);
      default:
        return put_part<3>(group, part, lane, out, width);
    }
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
struct CodeTq2_0 {
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
struct CodeInt8 {
  static constexpr int64_t kPart = 16;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const Times weight(floats_at(group, 0, lane));
    for (int64_t u = 0; u < 4; ++u)
      put_four(words_at(group, 4 + 16 * part + 4 * u, lane), weight, out + 4 * u * width, width);
  }
};
struct CodeUInt8 {
  static constexpr int64_t kPart = 16;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    // Both less 128: what a signed byte holds.
    const VecCodes zero_point = load_unsigned_bytes(group + PanelForm::kRows * 4 + lane) - set1_codes(128);
    const LessTimes weight(to_float(shift_left<24>(zero_point)), floats_at(group, 0, lane));
    for (int64_t u = 0; u < 4; ++u) {
      const VecCodes codes = words_at(group, 5 + 16 * part + 4 * u, lane) ^ bytes_of(0x80);
      put_four(codes, weight, out + 4 * u * width, width);
    }
  }
};
// Nibbles in the order of k, the low one of a byte first.
template <typename ToWeight>
COLUBER_INLINE void put_successive(const std::byte* group, int64_t offset, int64_t lane, const int8_t* values,
                                   const ToWeight& weight, float* out, int64_t width) {
  const VecNibbles table = load_nibbles(values);
  for (int64_t u = 0; u < 2; ++u) {
    const VecCodes x = words_at(group, offset + 4 * u, lane);
    put_four_nibbles<false>(x, table, weight, out + 8 * u * width, 2 * width);
    put_four_nibbles<true>(x, table, weight, out + (8 * u + 1) * width, 2 * width);
  }
}
struct CodeInt4 {
  static constexpr int64_t kPart = 16;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    put_successive(group, 4 + 8 * part, lane, kLess8, Times(floats_at(group, 0, lane)), out, width);
  }
};
struct CodeUInt4 {
  static constexpr int64_t kPart = 16;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const Times weight(floats_at(group, 0, lane));
    const VecCodes zero_point = load_unsigned_bytes(group + PanelForm::kRows * 4 + lane) * set1_codes(0x01010101);
    for (int64_t u = 0; u < 2; ++u) {
      const VecCodes x = words_at(group, 5 + 8 * part + 4 * u, lane);
      put_four(sub_bytes(low_nibbles(x), zero_point), weight, out + 8 * u * width, 2 * width);
      put_four(sub_bytes(high_nibbles(x), zero_point), weight, out + (8 * u + 1) * width, 2 * width);
    }
  }
};
struct CodeE2M1 {
  static constexpr int64_t kPart = 16;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const Times weight(floats_at(group, 0, lane) * set1(0.5f));  // its table is doubled
    put_successive(group, 4 + 8 * part, lane, kE2M1Doubled, weight, out, width);
  }
};
// Any sixteen values.
template <ScaledCode kCode>
struct CodeTable {
  static constexpr int64_t kPart = 16;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const VecTable table = load_table(nibble_table<kCode>());
    const Vec scale = floats_at(group, 0, lane);
    for (int64_t u = 0; u < 2; ++u, out += 8 * width) {
      Vec values[8];
      look_up(table, words_at(group, 4 + 8 * part + 4 * u, lane), values);
#pragma GCC unroll 8
      for (int64_t i = 0; i < 8; ++i) store(out + i * width, values[i] * scale);
    }
  }
};
// Bytes whose units are single bytes: one load is one k.
struct CodeE4M3 {
  static constexpr int64_t kPart = 16;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const Vec scale = floats_at(group, 0, lane) * set1(256.0f);
    const std::byte* codes = group + PanelForm::kRows * (4 + 16 * part) + lane;
    for (int64_t i = 0; i < 16; ++i) store(out + i * width, load_e4m3_256th(codes + PanelForm::kRows * i) * scale);
  }
};
struct CodeE5M2 {
  static constexpr int64_t kPart = 16;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const Vec scale = floats_at(group, 0, lane);
    const std::byte* codes = group + PanelForm::kRows * (4 + 16 * part) + lane;
    for (int64_t i = 0; i < 16; ++i) store(out + i * width, load_e5m2(codes + PanelForm::kRows * i) * scale);
  }
};

#include "kernels/quant/panel_lattice_cpu.inl"

template <typename Code>
void expand_panel(const PanelBlocks& from, int64_t first_strip, int64_t strips, int64_t first, int64_t count,
                  float* out) {
  // More than a block of all strips, whose bytes are wanted in no order: a nearer distance misses (measured: Q6_K a
  // third slower).
  constexpr int64_t kAheadBytes = 4096;
  const int64_t width = PanelForm::kRows * strips, group_bytes = PanelForm::kRows * from.bytes;
  const auto elements = static_cast<uint32_t>(from.elements), start = static_cast<uint32_t>(first);
  const int64_t parts = elements / Code::kPart, part_bytes = group_bytes / parts;
  const std::byte* groups = from.data + (start / elements * from.strips + first_strip) * group_bytes;
  int64_t part = start % elements / Code::kPart;
  for (; count > 0; count -= Code::kPart, out += Code::kPart * width) {
    const std::byte* ahead = groups + strips * part * part_bytes + std::max(kAheadBytes, strips * group_bytes + 1024);
    for (int64_t s = 0; s < strips; ++s) {
      for (int64_t lane = 0; lane < PanelForm::kRows; lane += kLanes, ahead += kLanes * part_bytes / PanelForm::kRows) {
        // Little by little: a whole part at once would want more lines than a core can wait for (measured: 15 %
        // slower).
        for (int64_t i = 0; i < kLanes * part_bytes / PanelForm::kRows; i += 64) prefetch_l2(ahead + i);
        Code::expand(groups + s * group_bytes, part, lane, out + PanelForm::kRows * s + lane, width);
      }
    }
    if (++part == parts) part = 0, groups += from.strips * group_bytes;
  }
}
