// SPDX-License-Identifier: Apache-2.0
//
// The one harness for tests of operations: runs every candidate that this machine can run against the reference, on the
// same inputs, within the tolerance that the operation's contract header states. A candidate of a tier that this
// processor lacks is named as not run, once an operation. For tests only; not thread-safe.
//
//   expect_candidates_agree(rms_norm(), kRmsNormTolerance, [&](RmsNormFunction f) {
//     std::vector<float> y(size);
//     f(args(y), pool);
//     return std::vector<OpOutput>{{"y", std::move(y)}};
//   });
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"

namespace coluber {

// One tensor that a candidate wrote, under the name that a failure shows. Include states: they are outputs too.
struct OpOutput {
  std::string name;
  std::vector<float> values;
};

inline std::vector<float> random_floats(int64_t count, float low, float high, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(generator);
  return values;
}

inline double root_mean_square(const std::vector<float>& values) {
  double sum = 0;
  for (float value : values) sum += std::isfinite(value) ? static_cast<double>(value) * value : 0.0;
  return values.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(values.size()));
}

// One failure for a whole tensor, at the element that misses the bound by most.
inline void expect_close(const std::vector<float>& got, const std::vector<float>& want, const Tolerance& tolerance,
                         const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what << ": the number of values differs";
  const double rms = root_mean_square(want);
  size_t worst = 0, misses = 0;
  double worst_excess = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double expected = want[i], found = got[i];
    if (std::isnan(expected) && std::isnan(found)) continue;
    if (found == expected) continue;  // equal infinities too
    const double bound = tolerance.absolute + tolerance.relative * std::fabs(expected) + tolerance.of_rms * rms;
    const double error = std::fabs(found - expected);
    if (error <= bound) continue;
    const double excess = std::isnan(error) || bound == 0 ? std::numeric_limits<double>::infinity() : error / bound;
    if (++misses == 1 || excess > worst_excess) worst = i, worst_excess = excess;
  }
  if (misses == 0) return;
  ADD_FAILURE() << what << ": " << misses << " of " << got.size() << " values miss the tolerance; worst at index "
                << worst << ": expected " << ::testing::PrintToString(want[worst]) << ", found "
                << ::testing::PrintToString(got[worst]) << ", difference "
                << static_cast<double>(got[worst]) - want[worst] << " = " << worst_excess << " times the bound";
}

// Says once an operation and tier what cannot run here, so that a log shows what stays untested.
inline void name_unrun_tier(const char* operation, const char* candidate) {
  static std::set<std::string> named;
  const std::string key = std::string(operation) + "=" + candidate;
  if (!named.insert(key).second) return;
  std::printf("[ NOT RUN  ] %s: this machine's tier is %s\n", key.c_str(), std::string(isa_name(active_isa())).c_str());
}

// `run(function)` computes with fresh outputs and returns them all.
template <typename Function, typename Run>
void expect_candidates_agree(const Operation<Function>& operation, const Tolerance& tolerance, Run&& run) {
  const std::vector<OpOutput> want = run(operation.reference().function);
  ASSERT_FALSE(want.empty()) << operation.name() << ": the test returns no outputs";
  for (const Candidate<Function>& candidate : operation.candidates()) {
    if (candidate.function == operation.reference().function) continue;
    if (candidate.isa > active_isa()) {
      name_unrun_tier(operation.name(), candidate.name);
      continue;
    }
    const std::vector<OpOutput> got = run(candidate.function);
    ASSERT_EQ(got.size(), want.size()) << operation.name() << "=" << candidate.name;
    for (size_t i = 0; i < want.size(); ++i) {
      expect_close(got[i].values, want[i].values, tolerance,
                   std::string(operation.name()) + "=" + candidate.name + ", output '" + want[i].name + "'");
    }
  }
}

// Calls run(function, other function) for each tier that this machine can run, the reference too. Operations that have
// the same candidates.
template <typename Function, typename Run>
void for_tiers(const Operation<Function>& operation, const Operation<Function>& other, Run&& run) {
  ASSERT_EQ(operation.candidates().size(), other.candidates().size());
  for (size_t i = 0; i < operation.candidates().size(); ++i) {
    const Candidate<Function>&one = operation.candidates()[i], &two = other.candidates()[i];
    if (one.isa > active_isa()) {
      name_unrun_tier(operation.name(), one.name);
      continue;
    }
    SCOPED_TRACE(std::string(operation.name()) + "=" + one.name);
    run(one.function, two.function);
  }
}

template <typename Function, typename Run>
void for_tiers(const Operation<Function>& operation, Run&& run) {
  for_tiers(operation, operation, [&](Function function, Function) { run(function); });
}

// On a processor with AVX2 the main path never runs a reference.
template <typename Function>
void expect_vectorised(const Operation<Function>& operation) {
  if (active_isa() < Isa::kAvx2) GTEST_SKIP() << "this machine's tier is ref";
  EXPECT_NE(operation.selected().isa, Isa::kRef) << operation.name() << " selects its reference on a machine with AVX2";
}

}  // namespace coluber
