// SPDX-License-Identifier: Apache-2.0
//
// How a row of numbers is kept as codes of few bits and one float32 scale: value = code * scale, with the scale chosen
// from the row's largest magnitude so that it gets the largest code. What the states of whole numbers and the narrow
// attention pages share; pure functions. A row with an infinity or a NaN gets a NaN scale (and codes of zero), so that
// it is found wherever states are checked; a row whose magnitudes are all below 1e-30 becomes zero.
#pragma once

#include <cstdint>
#include <limits>

#include "coluber/dtype.h"

namespace coluber {

// Of int16, int8 and float8_e4m3fn; 0 for types that are kept without a scale.
constexpr float largest_code(DType dtype) noexcept {
  switch (dtype) {
    case DType::kInt16:
      return 32767.0f;
    case DType::kInt8:
      return 127.0f;
    case DType::kFloat8E4M3:
      return 448.0f;
    default:
      return 0.0f;
  }
}

constexpr bool has_row_scale(DType dtype) noexcept { return largest_code(dtype) != 0.0f; }

struct RowScale {
  float scale = 0.0f;
  float inverse = 0.0f;  // what a value is multiplied by; 0 where all codes are zero
};

// Of a row whose largest magnitude is `largest` (NaN where one of its numbers is).
inline RowScale row_scale(float largest, float most) noexcept {
  if (!(largest <= std::numeric_limits<float>::max())) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  if (largest < 1e-30f) return {};
  return {largest / most, most / largest};
}

}  // namespace coluber
