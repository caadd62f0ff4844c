// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling/logits_ops.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/op_test.h"
#include "kernels/sampling/exact_exp.h"

namespace coluber {
namespace {

TEST(ExactExp, IsWithinTwoUlpOfTheTrueValue) {
  double worst = 0;
  for (int i = 0; i <= 2000000; ++i) {
    const double x = -static_cast<double>(i) * 0.00035397;
    if (x < -708.0) break;
    const long double want = std::exp(static_cast<long double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(static_cast<double>(want)) - 52);
    worst = std::max(worst, std::fabs(static_cast<double>((exact_exp(x) - want) / ulp)));
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(exact_exp(0.0), 1.0);
  EXPECT_EQ(exact_exp(-708.1), 0.0);
  EXPECT_EQ(exact_exp(-std::numeric_limits<double>::infinity()), 0.0);
}

// Every candidate gives the reference's bits.
TEST(SumWeights, CandidatesGiveTheSameBits) {
  for (int64_t vocab : {1, 7, 8, 255, 256, 257, 5003}) {
    std::vector<float> logits = random_floats(vocab, -30, 5, static_cast<uint64_t>(vocab));
    if (vocab > 5) logits[3] = -std::numeric_limits<float>::infinity(), logits[5] = -3e38f;
    const float maximum = *std::max_element(logits.begin(), logits.end());
    for (double inverse_temperature : {1.0, 0.25, 7.0}) {
      for (double floor : {0.0, 0.05}) {
        auto run = [&](SumWeightsFunction f) {
          std::vector<double> sums(static_cast<size_t>((vocab + kSumBlock - 1) / kSumBlock), -1.0);
          f({logits.data(), vocab, maximum, inverse_temperature, floor, sums.data()});
          return sums;
        };
        const std::vector<double> want = run(sum_weights_ref);
        for (const auto& candidate : sum_weights().candidates()) {
          if (candidate.isa > active_isa()) {
            name_unrun_tier("sum_weights", candidate.name);
            continue;
          }
          const std::vector<double> got = run(candidate.function);
          EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(double)))
              << candidate.name << " " << vocab;
        }
      }
    }
  }
}

TEST(ScanLogits, CandidatesAgree) {
  for (int64_t vocab : {1, 15, 16, 63, 64, 65, 1000}) {
    for (int bad = -1; bad < 3; ++bad) {
      std::vector<float> logits = random_floats(vocab, -30, -2, static_cast<uint64_t>(vocab));
      const float values[3] = {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity()};
      if (bad >= 0) logits[static_cast<size_t>(vocab - 1)] = values[bad];
      auto run = [&](ScanLogitsFunction f, bool* non_finite) {
        std::vector<float> maxima(static_cast<size_t>((vocab + kScanBlock - 1) / kScanBlock));
        *non_finite = f({logits.data(), vocab, maxima.data()});
        return maxima;
      };
      bool want_bad = false, got_bad = false;
      const std::vector<float> want = run(scan_logits_ref, &want_bad);
      EXPECT_EQ(want_bad, bad >= 0);
      for (const auto& candidate : scan_logits().candidates()) {
        if (candidate.isa > active_isa()) {
          name_unrun_tier("scan_logits", candidate.name);
          continue;
        }
        const std::vector<float> got = run(candidate.function, &got_bad);
        EXPECT_EQ(got_bad, want_bad) << candidate.name << " " << vocab;
        if (bad < 0) {
          EXPECT_EQ(got, want) << candidate.name << " " << vocab;
        }
      }
    }
  }
}

TEST(LogitsOps, RunVectorised) {
  expect_vectorised(scan_logits());
  expect_vectorised(sum_weights());
}

}  // namespace
}  // namespace coluber
