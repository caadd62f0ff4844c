// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/decay_gate.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"

namespace coluber {
namespace {

// Both tails, where a sigmoid or its complement rounds to 1.
std::vector<float> projections(int64_t count) {
  std::vector<float> x = random_floats(count, -8, 8, 1);
  for (size_t i = 0; i < x.size(); i += 5) x[i] *= 10;
  x[0] = 0.0f;
  return x;
}

TEST(DecayGate, LogSigmoidCandidatesAgree) {
  ThreadPool pool(2);
  for (float clamp_min : {-std::numeric_limits<float>::infinity(), -0.2f}) {
    for (int64_t count : {1, 37, 20000}) {
      const std::vector<float> x = projections(count);
      expect_candidates_agree(log_sigmoid_decay(), kDecayGateTolerance, [&](LogSigmoidDecayFunction f) {
        std::vector<float> a(x.size());
        f({x.data(), a.data(), count, 16.0f, clamp_min}, pool);
        return std::vector<OpOutput>{{"a", a}};
      });
    }
  }
  expect_vectorised(log_sigmoid_decay());
}

TEST(DecayGate, BoundedCandidatesAgreeWithAndWithoutABound) {
  ThreadPool pool(2);
  const int64_t tokens = 90, channels = 77;
  const std::vector<float> x = projections(tokens * channels), lower = random_floats(channels, 0, 1, 2);
  for (const float* bound : {lower.data(), static_cast<const float*>(nullptr)}) {
    expect_candidates_agree(bounded_decay(), kDecayGateTolerance, [&](BoundedDecayFunction f) {
      std::vector<float> a(x.size()), key(x.size());
      f({x.data(), bound, a.data(), key.data(), tokens, channels}, pool);
      return std::vector<OpOutput>{{"a", a}, {"key", key}};
    });
  }
  expect_vectorised(bounded_decay());
}

}  // namespace
}  // namespace coluber
