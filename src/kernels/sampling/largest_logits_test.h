// SPDX-License-Identifier: Apache-2.0
//
// Rows of logits that are hard to choose from, for the tests of both sides: many that are equal, infinite ones, NaN
// and rows in which nothing is left.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/op_test.h"

namespace coluber {

struct LogitsCase {
  int64_t rows = 0, vocab = 0;
  std::vector<float> logits;  // [rows, vocab]
};

inline std::vector<LogitsCase> logits_cases() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {NAN, kInfinity, -kInfinity, 0.0f, -0.0f, 3e38f};
  std::vector<LogitsCase> cases;
  for (const int64_t vocab : {1, 2, 31, 4095, 4096, 4097, 50288, 131072}) {
    LogitsCase c{24, vocab, random_floats(24 * vocab, -4, 4, static_cast<uint64_t>(vocab))};
    for (int64_t row = 0; row < c.rows; ++row) {
      float* logits = c.logits.data() + row * vocab;
      if (row % 3 == 1)
        for (int64_t i = 0; i < vocab; ++i) logits[i] = std::round(logits[i]);
      if (row % 4 == 2) logits[row * 7919 % vocab] = kSpecial[row / 4];
      if (row == 11) std::fill_n(logits, vocab, -kInfinity);
      if (row == 23) logits[vocab - 1] = 100.0f;
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace coluber
