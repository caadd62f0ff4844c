// SPDX-License-Identifier: Apache-2.0
// The IQ types of less than four bits: a code names a point of a lattice, whose coordinates are gathered as four bytes
// a row and then take the way of all whole numbers. Tables of at most 16 KiB; codes are cut to their sizes.

// Bit i of four to the lowest of byte i.
COLUBER_INLINE VecCodes spread_bits(VecCodes four) { return four * set1_codes(0x00204081) & set1_codes(0x01010101); }
// The bytes of `magnitudes` negated where the bit of four is set.
COLUBER_INLINE VecCodes with_signs(VecCodes magnitudes, VecCodes signs) {
  const VecCodes all = sub_bytes(set1_codes(0), spread_bits(signs & set1_codes(0xf)));
  return sub_bytes(magnitudes ^ all, all);
}
// Seven signs and the eighth that makes their number even.
COLUBER_INLINE VecCodes even_signs(VecCodes bits) {
  const VecCodes seven = bits & set1_codes(0x7f);
  VecCodes parity = seven ^ shift_right<4>(seven);
  parity = parity ^ shift_right<2>(parity);
  parity = (parity ^ shift_right<1>(parity)) & set1_codes(1);
  return seven | shift_left<7>(parity);
}
COLUBER_INLINE VecCodes byte_of(VecCodes words, int64_t byte) {
  return (words >> static_cast<int>(8 * byte)) & set1_codes(0xff);
}
// Nibble `i` of the bytes from `offset`.
COLUBER_INLINE VecCodes nibble_of(const std::byte* group, int64_t offset, int64_t i, int64_t lane) {
  return (words_at(group, offset + i / 8 * 4, lane) >> static_cast<int>(4 * (i % 8))) & set1_codes(0xf);
}
COLUBER_INLINE Vec half_and(VecCodes whole) { return to_float(whole) + set1(0.5f); }
COLUBER_INLINE VecCodes unsigned_words_at(const std::byte* group, int64_t offset, int64_t lane) {
  return load_unsigned_words(group + PanelForm::kRows * offset + 2 * lane);
}

// Points of eight and of four coordinates.
COLUBER_INLINE void put_point8(const int8_t* table, VecCodes index, VecCodes signs, const Times& weight, float* out,
                               int64_t width) {
  put_four(with_signs(gather_words<8>(table, index), signs), weight, out, width);
  put_four(with_signs(gather_words<8>(table + 4, index), shift_right<4>(signs)), weight, out + 4 * width, width);
}
COLUBER_INLINE void put_point4(const int8_t* table, VecCodes index, VecCodes signs, const Times& weight, float* out,
                               int64_t width) {
  put_four(with_signs(gather_words<4>(table, index), signs), weight, out, width);
}

struct CodeIq2Xxs {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const int8_t* table = lattice_points().iq2_xxs[0];
    const VecCodes codes = words_at(group, 2 + 8 * part, lane), word = words_at(group, 6 + 8 * part, lane);
    const Times weight(halves_at(group, 0, lane) * half_and(shift_right<28>(word)) * set1(0.25f));
    for (int64_t i = 0; i < 4; ++i) {
      const VecCodes signs = even_signs(word >> static_cast<int>(7 * i));
      put_point8(table, byte_of(codes, i), signs, weight, out + 8 * i * width, width);
    }
  }
};
struct CodeIq2Xs {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const int8_t* table = lattice_points().iq2_xs[0];
    const Vec d = halves_at(group, 0, lane);
    for (int64_t i = 0; i < 4; ++i) {
      const Times weight(d * half_and(nibble_of(group, 66, 2 * part + i / 2, lane)) * set1(0.25f));
      const VecCodes code = words_at(group, 2 + 8 * part + i / 2 * 4, lane) >> static_cast<int>(16 * (i % 2));
      put_point8(table, code & set1_codes(511), even_signs(shift_right<9>(code)), weight, out + 8 * i * width, width);
    }
  }
};
struct CodeIq2S {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const int8_t* table = lattice_points().iq2_s[0];
    const Vec d = halves_at(group, 0, lane);
    const VecCodes low = words_at(group, 2 + 4 * part, lane), signs = words_at(group, 34 + 4 * part, lane);
    const VecCodes high = byte_of(words_at(group, 66 + part / 4 * 4, lane), part % 4);
    for (int64_t i = 0; i < 4; ++i) {
      const Times weight(d * half_and(nibble_of(group, 74, 2 * part + i / 2, lane)) * set1(0.25f));
      const VecCodes top = (high >> static_cast<int>(2 * i)) & set1_codes(3);
      put_point8(table, byte_of(low, i) | shift_left<8>(top), byte_of(signs, i), weight, out + 8 * i * width, width);
    }
  }
};
struct CodeIq3Xxs {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const int8_t* table = lattice_points().iq3_xxs[0];
    const VecCodes word = words_at(group, 66 + 4 * part, lane);
    const Times weight(halves_at(group, 0, lane) * half_and(shift_right<28>(word)) * set1(0.5f));
    for (int64_t i = 0; i < 8; ++i) {
      const VecCodes codes = words_at(group, 2 + 8 * part + i / 4 * 4, lane);
      const VecCodes signs = even_signs(word >> static_cast<int>(7 * (i / 2))) >> static_cast<int>(4 * (i % 2));
      put_point4(table, byte_of(codes, i % 4), signs, weight, out + 4 * i * width, width);
    }
  }
};
struct CodeIq3S {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const int8_t* table = lattice_points().iq3_s[0];
    const VecCodes odd = shift_left<1>(nibble_of(group, 106, part, lane)) | set1_codes(1);
    const Times weight(halves_at(group, 0, lane) * to_float(odd));
    const VecCodes high = byte_of(words_at(group, 66 + part / 4 * 4, lane), part % 4);
    const VecCodes signs = words_at(group, 74 + 4 * part, lane);
    for (int64_t i = 0; i < 8; ++i) {
      const VecCodes low = byte_of(words_at(group, 2 + 8 * part + i / 4 * 4, lane), i % 4);
      const VecCodes top = (high >> static_cast<int>(i)) & set1_codes(1);
      put_point4(table, low | shift_left<8>(top), signs >> static_cast<int>(4 * i), weight, out + 4 * i * width, width);
    }
  }
};

// One or minus one in all bytes: the delta of IQ1 as its points are eightfold.
COLUBER_INLINE void put_iq1(VecCodes index, VecCodes minus, const Times& weight, float* out, int64_t width) {
  const int8_t* table = lattice_points().iq1[0];
  const VecCodes less = sub_bytes(minus * set1_codes(0x02020202), bytes_of(1));  // what is subtracted
  put_four(sub_bytes(gather_words<8>(table, index), less), weight, out, width);
  put_four(sub_bytes(gather_words<8>(table + 4, index), less), weight, out + 4 * width, width);
}
struct CodeIq1S {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    const VecCodes low = words_at(group, 2 + 4 * part, lane), word = unsigned_words_at(group, 34 + 2 * part, lane);
    const VecCodes odd = (shift_right<11>(word) & set1_codes(14)) | set1_codes(1);
    const Times weight(halves_at(group, 0, lane) * to_float(odd) * set1(0.125f));
    for (int64_t i = 0; i < 4; ++i) {
      const VecCodes top = (word >> static_cast<int>(3 * i)) & set1_codes(7);
      put_iq1(byte_of(low, i) | shift_left<8>(top), shift_right<15>(word), weight, out + 8 * i * width, width);
    }
  }
};
struct CodeIq1M {
  static constexpr int64_t kPart = 32;
  static COLUBER_INLINE void expand(const std::byte* group, int64_t part, int64_t lane, float* out, int64_t width) {
    uint16_t halves[kLanes] = {};  // in the top nibbles of four words
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t r = 0; r < kLanes; ++r) {
        uint16_t word;
        std::memcpy(&word, group + PanelForm::kRows * (48 + 2 * i) + 2 * (lane + r), sizeof word);
        halves[r] = static_cast<uint16_t>(halves[r] | (word >> 12) << (4 * i));
      }
    }
    const Vec d = load_f16(halves) * set1(0.125f);
    const VecCodes low = words_at(group, 4 * part, lane), high = unsigned_words_at(group, 32 + 2 * part, lane);
    const VecCodes scales = unsigned_words_at(group, 48 + part / 2 * 2, lane);
    for (int64_t i = 0; i < 4; ++i) {
      const VecCodes scale = (scales >> static_cast<int>(3 * (part % 2 * 2 + i / 2))) & set1_codes(7);
      const Times weight(d * to_float(shift_left<1>(scale) | set1_codes(1)));
      const VecCodes top = high >> static_cast<int>(4 * i);
      put_iq1(byte_of(low, i) | shift_left<8>(top & set1_codes(7)), shift_right<3>(top) & set1_codes(1), weight,
              out + 8 * i * width, width);
    }
  }
};
