// SPDX-License-Identifier: Apache-2.0
// The K types: blocks of 256 whose sixteen or eight parts have scales of a few bits, times a float16.
#include "kernels/quant/block_decoders.h"

namespace coluber {
namespace {

// Two bits of element i: four successive runs of 32 share the 32 bytes of their half.
int code2(const std::byte* codes, int64_t i) { return (byte_at(codes, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2)) & 3; }
// Four bits of element i: two successive runs of 32 share 32 bytes.
int code4(const std::byte* codes, int64_t i) {
  return (byte_at(codes, i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4)) & 0xf;
}

}  // namespace

void decode_q2_k(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t b = 0; b < count; ++b, blocks += 84, out += kSuperBlock) {
    const float d = half_at(blocks, 80), minimum = half_at(blocks, 82);
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const uint8_t scale = byte_at(blocks, i / 16);
      const float dl = d * static_cast<float>(scale & 0xf), ml = minimum * static_cast<float>(scale >> 4);
      out[i] = dl * static_cast<float>(code2(blocks + 16, i)) - ml;
    }
  }
}

void decode_q3_k(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t b = 0; b < count; ++b, blocks += 110, out += kSuperBlock) {
    const float d = half_at(blocks, 108);
    const std::byte* scales = blocks + 96;
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const int64_t part = i / 16;
      const int low = (byte_at(scales, part % 8) >> (part / 8 * 4)) & 0xf;
      const int high = (byte_at(scales, 8 + part % 4) >> (part / 4 * 2)) & 3;
      const float dl = d * static_cast<float>((low | high << 4) - 32);
      const bool third = ((byte_at(blocks, i % 32) >> (i / 32)) & 1) != 0;
      out[i] = dl * static_cast<float>(code2(blocks + 32, i) - (third ? 0 : 4));
    }
  }
}

void decode_q4_k(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t b = 0; b < count; ++b, blocks += 144, out += kSuperBlock) {
    const float d = half_at(blocks, 0), minimum = half_at(blocks, 2);
    for (int64_t part = 0; part < 8; ++part) {
      const KScale scale = k_scale_at(blocks + 4, part);
      const float dl = d * static_cast<float>(scale.scale), ml = minimum * static_cast<float>(scale.minimum);
      for (int64_t i = 32 * part; i < 32 * part + 32; ++i) out[i] = dl * static_cast<float>(code4(blocks + 16, i)) - ml;
    }
  }
}

void decode_q5_k(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t b = 0; b < count; ++b, blocks += 176, out += kSuperBlock) {
    const float d = half_at(blocks, 0), minimum = half_at(blocks, 2);
    for (int64_t part = 0; part < 8; ++part) {
      const KScale scale = k_scale_at(blocks + 4, part);
      const float dl = d * static_cast<float>(scale.scale), ml = minimum * static_cast<float>(scale.minimum);
      for (int64_t i = 32 * part; i < 32 * part + 32; ++i) {
        const int fifth = (byte_at(blocks, 16 + i % 32) >> part) & 1;
        out[i] = dl * static_cast<float>(code4(blocks + 48, i) | fifth << 4) - ml;
      }
    }
  }
}

void decode_q6_k(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t b = 0; b < count; ++b, blocks += 210, out += kSuperBlock) {
    const float d = half_at(blocks, 208);
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const float dl = d * static_cast<float>(word_at<int8_t>(blocks, 192 + i / 16));
      const int low = (byte_at(blocks, i / 128 * 64 + i % 64) >> (i / 64 % 2 * 4)) & 0xf;
      out[i] = dl * static_cast<float>((low | code2(blocks + 128, i) << 4) - 32);
    }
  }
}

}  // namespace coluber
