// SPDX-License-Identifier: Apache-2.0
//
// One function a block type, from `count` blocks to float32. Internal to this folder. Each is written in the order of
// operations that defines the type's values: a product of scales first, one rounding an operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace coluber {

inline uint8_t byte_at(const std::byte* from, int64_t i) noexcept { return static_cast<uint8_t>(from[i]); }
template <typename T>
T word_at(const std::byte* from, int64_t offset) noexcept {
  T value;
  std::memcpy(&value, from + offset, sizeof value);
  return value;
}
inline float half_at(const std::byte* from, int64_t offset) noexcept {
  return float16_to_float(word_at<uint16_t>(from, offset));
}
// Nibble i of a run of bytes, the low one of each first.
inline uint8_t nibble_at(const std::byte* from, int64_t i) noexcept {
  return static_cast<uint8_t>((byte_at(from, i / 2) >> (4 * (i % 2))) & 0xf);
}

// The eight scales and minima of six bits that Q4_K and Q5_K hold in twelve bytes.
struct KScale {
  uint8_t scale, minimum;
};
inline KScale k_scale_at(const std::byte* from, int64_t j) noexcept {
  if (j < 4) return {static_cast<uint8_t>(byte_at(from, j) & 0x3f), static_cast<uint8_t>(byte_at(from, 4 + j) & 0x3f)};
  const uint8_t low = byte_at(from, 4 + j);
  return {static_cast<uint8_t>((low & 0xf) | ((byte_at(from, j - 4) >> 2) & 0x30)),
          static_cast<uint8_t>((low >> 4) | ((byte_at(from, j) >> 2) & 0x30))};
}

inline constexpr int64_t kSuperBlock = 256;
// The values of a four-bit float (E2M1), doubled.
inline constexpr int8_t kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// Of MXFP4, times 2^-24 still a normal float32.
inline constexpr uint8_t kLeastMxfp4Exponent = 32;
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

using BlockDecoder = void(const std::byte* blocks, int64_t count, float* out);
BlockDecoder decode_q4_0, decode_q4_1, decode_q5_0, decode_q5_1, decode_q8_0, decode_mxfp4, decode_nvfp4, decode_tq1_0,
    decode_tq2_0, decode_iq4_nl, decode_iq4_xs;
BlockDecoder decode_q2_k, decode_q3_k, decode_q4_k, decode_q5_k, decode_q6_k;
BlockDecoder decode_iq1_s, decode_iq1_m, decode_iq2_xxs, decode_iq2_xs, decode_iq2_s, decode_iq3_xxs, decode_iq3_s;

}  // namespace coluber
