// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/silu.h"

#include <gtest/gtest.h>

#include "kernels/op_test.h"

namespace coluber {
namespace {

TEST(Silu, CandidatesAgree) {
  ThreadPool pool(2);
  for (int64_t count : {0, 1, 7, 16, 33, 40001}) {
    std::vector<float> x = random_floats(count, -30, 30, 1);
    if (count > 3) x[1] = 100.0f, x[2] = -80.0f, x[3] = 0.0f;
    expect_candidates_agree(silu(), kSiluTolerance, [&](SiluFunction f) {
      std::vector<float> y = x;
      f({y.data(), y.data(), count}, pool);
      return std::vector<OpOutput>{{"y", y}};
    });
  }
  expect_vectorised(silu());
}

}  // namespace
}  // namespace coluber
