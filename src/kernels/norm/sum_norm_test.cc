// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/sum_norm.h"

#include <gtest/gtest.h>

#include <vector>

namespace coluber {
namespace {

TEST(SumNorm, DividesEachGroupByItsMagnitudesAndLeavesWhatLiesBehind) {
  ThreadPool pool(2);
  std::vector<float> x{1, -3, 0, 0, 9, 0.5f, 0.5f, -2, 6, 9};
  SumNormArgs args{x.data(), 5, 2, 2, 2, 0.25f};
  sum_norm()(args, pool);
  EXPECT_EQ(x, (std::vector<float>{0.25f, -0.75f, 0, 0, 9, 0.5f, 0.5f, -0.25f, 0.75f, 9}));
}

}  // namespace
}  // namespace coluber
