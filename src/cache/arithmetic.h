// SPDX-License-Identifier: Apache-2.0
//
// Whole-number arithmetic of sizes, with overflow refused as a fault of the configuration. Pure functions.
#pragma once

#include <cstdint>
#include <numeric>

#include "base/error.h"

namespace coluber {

inline int64_t ceil_div(int64_t a, int64_t b) noexcept { return a / b + (a % b > 0 ? 1 : 0); }

// Rounds towards minus infinity.
inline int64_t floor_div(int64_t a, int64_t b) noexcept { return a / b - (a % b < 0 ? 1 : 0); }

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result))
    throw make_error(ErrorCode::kInvalidConfig, "{} + {} overflows a 64-bit size; make the sizes smaller", a, b);
  return result;
}

inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result))
    throw make_error(ErrorCode::kInvalidConfig, "{} * {} overflows a 64-bit size; make the sizes smaller", a, b);
  return result;
}

// Both positive.
inline int64_t checked_lcm(int64_t a, int64_t b) { return checked_mul(a / std::gcd(a, b), b); }

inline int64_t round_up(int64_t a, int64_t multiple) { return checked_mul(ceil_div(a, multiple), multiple); }

}  // namespace coluber
