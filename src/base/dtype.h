// SPDX-License-Identifier: Apache-2.0
//
// Scalar conversions between float32 and the narrow types of checkpoints and states. They define what a value of a type
// means; kernels have vector forms that agree bit for bit. To a narrow type: round to nearest, ties to even; NaN stays
// NaN. Types with an infinity (float16, bfloat16, float8_e5m2) overflow to it; float8_e4m3fn has none and overflows to
// NaN, as PyTorch's does.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "coluber/dtype.h"

namespace coluber {

inline float bfloat16_to_float(uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t float_to_bfloat16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40);  // quiet, payload kept
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float float16_to_float(uint16_t bits) noexcept;
uint16_t float_to_float16(float value) noexcept;
float float8_e4m3_to_float(uint8_t bits) noexcept;
uint8_t float_to_float8_e4m3(float value) noexcept;
float float8_e5m2_to_float(uint8_t bits) noexcept;
uint8_t float_to_float8_e5m2(float value) noexcept;
// A power of two, 2^(bits - 127); 255 is NaN.
float float8_e8m0_to_float(uint8_t bits) noexcept;
// The nearest power of two; what is not above zero gives the smallest one, 2^-127. NaN and infinity give NaN.
uint8_t float_to_float8_e8m0(float value) noexcept;
// The low or the high nibble of a byte as a value from -8 to 7.
inline int int4_low(uint8_t byte) noexcept { return static_cast<int>((byte & 0xf) ^ 8) - 8; }
inline int int4_high(uint8_t byte) noexcept { return static_cast<int>((byte >> 4) ^ 8) - 8; }

// `count` elements at `data` (any alignment) as float32. Every type; integers and float64 round to nearest, bool gives
// 0 or 1.
void convert_to_float(const void* data, DType dtype, int64_t count, float* out);
// The other way, for floating types of a byte and more. Throws Error(kUnsupported) for others.
void convert_from_float(const float* values, int64_t count, DType dtype, void* out);

}  // namespace coluber
