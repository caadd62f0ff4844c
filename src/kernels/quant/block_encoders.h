// SPDX-License-Identifier: Apache-2.0
//
// One function a block type, from float32 to `count` blocks: the opposite of block_decoders.h. Internal to this folder.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace coluber {

using BlockEncoder = void(const float* values, int64_t count, std::byte* blocks);
BlockEncoder encode_q4_0, encode_q4_1, encode_q5_0, encode_q5_1, encode_q8_0;
BlockEncoder encode_q4_k, encode_q5_k, encode_q6_k;

template <typename T>
void put_word(std::byte* to, int64_t offset, T value) noexcept {
  std::memcpy(to + offset, &value, sizeof value);
}
// The value as float16, and what a reader gets back.
inline float put_half(std::byte* to, int64_t offset, float value) noexcept {
  const uint16_t bits = float_to_float16(value);
  put_word(to, offset, bits);
  return float16_to_float(bits);
}

// Of a scale that is zero, or so small that its inverse is no number, zero: all codes are then those of zero.
inline float inverse_of(float scale) noexcept {
  const float inverse = scale == 0 ? 0.0f : 1.0f / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

}  // namespace coluber
