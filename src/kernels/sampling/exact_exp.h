// SPDX-License-Identifier: Apache-2.0
//
// e^x for x <= 0 in double from additions and multiplications alone (no fused ones), so that every processor, tier and
// C library gives the same bits: a token that is sampled must not depend on them. Within 2 ulp of the true value; 0
// below -708 and for minus infinity.
#pragma once

#include <bit>
#include <cstdint>

namespace coluber {

struct ExactExp {
  static constexpr double kLog2E = 1.4426950408889634;
  static constexpr double kLn2High = 0x1.62e42fefa0000p-1;  // 13 trailing zeros: n * kLn2High is exact
  static constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
  static constexpr double kRounder = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  static constexpr double kSmallest = -708.0;
  // 1 / 13!, 1 / 12!, ..., 1 / 0!
  static constexpr double kTerms[14] = {1.0 / 6227020800.0,
                                        1.0 / 479001600.0,
                                        1.0 / 39916800.0,
                                        1.0 / 3628800.0,
                                        1.0 / 362880.0,
                                        1.0 / 40320.0,
                                        1.0 / 5040.0,
                                        1.0 / 720.0,
                                        1.0 / 120.0,
                                        1.0 / 24.0,
                                        1.0 / 6.0,
                                        0.5,
                                        1.0,
                                        1.0};
};

inline double exact_exp(double x) noexcept {
  if (!(x >= ExactExp::kSmallest)) return 0.0;
  const double shifted = x * ExactExp::kLog2E + ExactExp::kRounder;
  const double n = shifted - ExactExp::kRounder;
  const double r = (x - n * ExactExp::kLn2High) - n * ExactExp::kLn2Low;
  double p = ExactExp::kTerms[0];
  for (int i = 1; i < 14; ++i) p = p * r + ExactExp::kTerms[i];
  return p * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

}  // namespace coluber
