// SPDX-License-Identifier: Apache-2.0
// The IQ types of less than four bits: codes name points of a lattice, of eight or of four coordinates.
#include <bit>

#include "kernels/quant/block_decoders.h"
#include "kernels/quant/lattices.h"

namespace coluber {
namespace {

constexpr float kIq1Delta = 0.125f;

// Seven signs and the eighth that makes their number even.
uint8_t even_signs(uint32_t seven) {
  seven &= 0x7f;
  return static_cast<uint8_t>(seven | (std::popcount(seven) % 2 != 0 ? 0x80U : 0U));
}

// kCount elements, whose signs begin at bit 0.
template <int kCount>
void put_signed(const int8_t* point, float scale, int signs, float* out) {
  for (int i = 0; i < kCount; ++i) out[i] = scale * static_cast<float>((signs >> i) & 1 ? -point[i] : point[i]);
}
// Eight elements of IQ1.
void put_iq1(const int8_t* point, float scale, float delta, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = scale * (static_cast<float>(point[i]) * kIq1Delta + delta);
}

}  // namespace

void decode_iq2_xxs(const std::byte* blocks, int64_t count, float* out) {
  const auto& points = lattice_points().iq2_xxs;
  for (int64_t b = 0; b < count; ++b, blocks += 66, out += kSuperBlock) {
    const float d = half_at(blocks, 0);
    for (int64_t part = 0; part < 8; ++part) {
      const std::byte* codes = blocks + 2 + 8 * part;
      const auto word = word_at<uint32_t>(codes, 4);
      const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
      for (int i = 0; i < 4; ++i)
        put_signed<8>(points[byte_at(codes, i)], scale, even_signs(word >> (7 * i)), out + 32 * part + 8 * i);
    }
  }
}

void decode_iq2_xs(const std::byte* blocks, int64_t count, float* out) {
  const auto& points = lattice_points().iq2_xs;
  for (int64_t b = 0; b < count; ++b, blocks += 74, out += kSuperBlock) {
    const float d = half_at(blocks, 0);
    for (int64_t i = 0; i < 32; ++i) {
      const auto code = word_at<uint16_t>(blocks, 2 + 2 * i);
      const float scale = d * (0.5f + static_cast<float>(nibble_at(blocks + 66, i / 2))) * 0.25f;
      put_signed<8>(points[code & 511], scale, even_signs(code >> 9), out + 8 * i);
    }
  }
}

void decode_iq2_s(const std::byte* blocks, int64_t count, float* out) {
  const auto& points = lattice_points().iq2_s;
  for (int64_t b = 0; b < count; ++b, blocks += 82, out += kSuperBlock) {
    const float d = half_at(blocks, 0);
    for (int64_t i = 0; i < 32; ++i) {
      const int code = byte_at(blocks, 2 + i) | ((byte_at(blocks, 66 + i / 4) >> (i % 4 * 2)) & 3) << 8;
      const float scale = d * (0.5f + static_cast<float>(nibble_at(blocks + 74, i / 2))) * 0.25f;
      put_signed<8>(points[code], scale, byte_at(blocks, 34 + i), out + 8 * i);
    }
  }
}

void decode_iq3_xxs(const std::byte* blocks, int64_t count, float* out) {
  const auto& points = lattice_points().iq3_xxs;
  for (int64_t b = 0; b < count; ++b, blocks += 98, out += kSuperBlock) {
    const float d = half_at(blocks, 0);
    for (int64_t i = 0; i < 64; ++i) {
      const auto word = word_at<uint32_t>(blocks, 66 + i / 8 * 4);
      const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
      const uint8_t signs = even_signs(word >> (i / 2 % 4 * 7));
      put_signed<4>(points[byte_at(blocks, 2 + i)], scale, signs >> (i % 2 * 4), out + 4 * i);
    }
  }
}

void decode_iq3_s(const std::byte* blocks, int64_t count, float* out) {
  const auto& points = lattice_points().iq3_s;
  for (int64_t b = 0; b < count; ++b, blocks += 110, out += kSuperBlock) {
    const float d = half_at(blocks, 0);
    for (int64_t i = 0; i < 64; ++i) {
      const int code = byte_at(blocks, 2 + i) | ((byte_at(blocks, 66 + i / 8) >> (i % 8)) & 1) << 8;
      const float scale = d * static_cast<float>(1 + 2 * nibble_at(blocks + 106, i / 8));
      put_signed<4>(points[code], scale, byte_at(blocks, 74 + i / 2) >> (i % 2 * 4), out + 4 * i);
    }
  }
}

void decode_iq1_s(const std::byte* blocks, int64_t count, float* out) {
  const auto& points = lattice_points().iq1;
  for (int64_t b = 0; b < count; ++b, blocks += 50, out += kSuperBlock) {
    const float d = half_at(blocks, 0);
    for (int64_t i = 0; i < 32; ++i) {
      const int word = word_at<uint16_t>(blocks, 34 + i / 4 * 2);
      const int code = byte_at(blocks, 2 + i) | ((word >> (i % 4 * 3)) & 7) << 8;
      const float scale = d * static_cast<float>(2 * ((word >> 12) & 7) + 1);
      put_iq1(points[code], scale, (word & 0x8000) != 0 ? -kIq1Delta : kIq1Delta, out + 8 * i);
    }
  }
}

void decode_iq1_m(const std::byte* blocks, int64_t count, float* out) {
  const auto& points = lattice_points().iq1;
  for (int64_t b = 0; b < count; ++b, blocks += 56, out += kSuperBlock) {
    const std::byte* scales = blocks + 48;
    int half = 0;  // its nibbles are the top ones of four words
    for (int i = 0; i < 4; ++i) half |= (word_at<uint16_t>(scales, 2 * i) >> 12) << (4 * i);
    const float d = float16_to_float(static_cast<uint16_t>(half));
    for (int64_t i = 0; i < 32; ++i) {
      const int high = nibble_at(blocks + 32, i);
      const int code = byte_at(blocks, i) | (high & 7) << 8;
      const int part = (word_at<uint16_t>(scales, i / 8 * 2) >> (i / 2 % 4 * 3)) & 7;
      put_iq1(points[code], d * static_cast<float>(2 * part + 1), (high & 8) != 0 ? -kIq1Delta : kIq1Delta,
              out + 8 * i);
    }
  }
}

}  // namespace coluber
