// SPDX-License-Identifier: Apache-2.0
// Types with one scale a block, or a table of values.
#include <bit>
#include <cmath>

#include "kernels/quant/block_decoders.h"

namespace coluber {
namespace {

// Element i of 32: the low nibbles of 16 bytes, then the high ones.
int code4(const std::byte* codes, int64_t i) { return (byte_at(codes, i % 16) >> (i < 16 ? 0 : 4)) & 0xf; }
// The same with a fifth bit each in a word.
int code5(const std::byte* codes, uint32_t high, int64_t i) {
  return code4(codes, i) | static_cast<int>((high >> i) & 1) << 4;
}

template <int64_t kElements, int64_t kBytes, typename Decode>
void each_block(const std::byte* blocks, int64_t count, float* out, Decode decode) {
  for (int64_t b = 0; b < count; ++b, blocks += kBytes, out += kElements) decode(blocks, out);
}

// Half of 2^(e - 127), so that doubled values come out right.
float half_of_e8m0(uint8_t exponent) {
  return std::bit_cast<float>(exponent < 2 ? 0x00200000U << exponent : static_cast<uint32_t>(exponent - 1) << 23);
}

// Half of an unsigned E4M3.
float half_of_ue4m3(uint8_t bits) {
  if (bits == 0 || bits == 0x7f) return 0.0f;
  const int exponent = (bits >> 3) & 0xf, mantissa = bits & 7;
  return 0.5f * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                               : std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7));
}

// One of five ternary digits in a byte: the byte is a fraction of 256, and each digit the next product by three.
float ternary(uint8_t byte, int power) {
  const auto scaled = static_cast<uint8_t>(byte * power);
  return static_cast<float>(((scaled * 3) >> 8) - 1);
}

}  // namespace

void decode_q4_0(const std::byte* blocks, int64_t count, float* out) {
  each_block<32, 18>(blocks, count, out, [](const std::byte* block, float* to) {
    const float d = half_at(block, 0);
    for (int64_t i = 0; i < 32; ++i) to[i] = d * static_cast<float>(code4(block + 2, i) - 8);
  });
}

void decode_q4_1(const std::byte* blocks, int64_t count, float* out) {
  each_block<32, 20>(blocks, count, out, [](const std::byte* block, float* to) {
    const float d = half_at(block, 0), m = half_at(block, 2);
    for (int64_t i = 0; i < 32; ++i) to[i] = d * static_cast<float>(code4(block + 4, i)) + m;
  });
}

void decode_q5_0(const std::byte* blocks, int64_t count, float* out) {
  each_block<32, 22>(blocks, count, out, [](const std::byte* block, float* to) {
    const float d = half_at(block, 0);
    const auto high = word_at<uint32_t>(block, 2);
    for (int64_t i = 0; i < 32; ++i) to[i] = d * static_cast<float>(code5(block + 6, high, i) - 16);
  });
}

void decode_q5_1(const std::byte* blocks, int64_t count, float* out) {
  each_block<32, 24>(blocks, count, out, [](const std::byte* block, float* to) {
    const float d = half_at(block, 0), m = half_at(block, 2);
    const auto high = word_at<uint32_t>(block, 4);
    for (int64_t i = 0; i < 32; ++i) to[i] = d * static_cast<float>(code5(block + 8, high, i)) + m;
  });
}

void decode_q8_0(const std::byte* blocks, int64_t count, float* out) {
  each_block<32, 34>(blocks, count, out, [](const std::byte* block, float* to) {
    const float d = half_at(block, 0);
    for (int64_t i = 0; i < 32; ++i) to[i] = static_cast<float>(word_at<int8_t>(block, 2 + i)) * d;
  });
}

void decode_iq4_nl(const std::byte* blocks, int64_t count, float* out) {
  each_block<32, 18>(blocks, count, out, [](const std::byte* block, float* to) {
    const float d = half_at(block, 0);
    for (int64_t i = 0; i < 32; ++i) to[i] = d * static_cast<float>(kIq4Values[code4(block + 2, i)]);
  });
}

void decode_iq4_xs(const std::byte* blocks, int64_t count, float* out) {
  each_block<kSuperBlock, 136>(blocks, count, out, [](const std::byte* block, float* to) {
    const float d = half_at(block, 0);
    const int high = word_at<uint16_t>(block, 2);
    for (int64_t part = 0; part < 8; ++part) {
      const int scale = nibble_at(block + 4, part) | ((high >> (2 * part)) & 3) << 4;
      const float dl = d * static_cast<float>(scale - 32);
      const std::byte* codes = block + 8 + 16 * part;
      for (int64_t i = 0; i < 32; ++i) to[32 * part + i] = dl * static_cast<float>(kIq4Values[code4(codes, i)]);
    }
  });
}

void decode_mxfp4(const std::byte* blocks, int64_t count, float* out) {
  each_block<32, 17>(blocks, count, out, [](const std::byte* block, float* to) {
    const float d = half_of_e8m0(byte_at(block, 0));
    for (int64_t i = 0; i < 32; ++i) to[i] = d * static_cast<float>(kE2M1Doubled[code4(block + 1, i)]);
  });
}

void decode_nvfp4(const std::byte* blocks, int64_t count, float* out) {
  each_block<64, 36>(blocks, count, out, [](const std::byte* block, float* to) {
    for (int64_t part = 0; part < 4; ++part) {
      const float d = half_of_ue4m3(byte_at(block, part));
      for (int64_t i = 0; i < 16; ++i) {
        const uint8_t byte = byte_at(block, 4 + 8 * part + i % 8);
        to[16 * part + i] = d * static_cast<float>(kE2M1Doubled[i < 8 ? byte & 0xf : byte >> 4]);
      }
    }
  });
}

void decode_tq1_0(const std::byte* blocks, int64_t count, float* out) {
  constexpr int kPowers[5] = {1, 3, 9, 27, 81};
  each_block<kSuperBlock, 54>(blocks, count, out, [&](const std::byte* block, float* to) {
    const float d = half_at(block, 52);
    for (const int power : kPowers)
      for (int64_t i = 0; i < 32; ++i) *to++ = d * ternary(byte_at(block, i), power);
    for (const int power : kPowers)
      for (int64_t i = 32; i < 48; ++i) *to++ = d * ternary(byte_at(block, i), power);
    for (int p = 0; p < 4; ++p)
      for (int64_t i = 48; i < 52; ++i) *to++ = d * ternary(byte_at(block, i), kPowers[p]);
  });
}

void decode_tq2_0(const std::byte* blocks, int64_t count, float* out) {
  each_block<kSuperBlock, 66>(blocks, count, out, [](const std::byte* block, float* to) {
    const float d = half_at(block, 64);
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const int code = (byte_at(block, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2)) & 3;
      to[i] = d * static_cast<float>(code - 1);
    }
  });
}

}  // namespace coluber
