// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise/scale.h"

#include <gtest/gtest.h>

#include <vector>

namespace coluber {
namespace {

TEST(Scale, MultipliesAddsAndAccumulatesWithinItsColumns) {
  ThreadPool pool(2);
  const std::vector<float> x{1, 2, 9, 3, 4, 9}, factor{2, 3}, bias{10, 20};
  std::vector<float> y{100, 200, -1, 300, 400, -1};
  ScaleArgs args{x.data(), 3, y.data(), 3, 2, 2, 0.5f};
  scale()(args, pool);
  EXPECT_EQ(y, (std::vector<float>{0.5f, 1, -1, 1.5f, 2, -1}));
  args.column_factor = factor.data();
  args.column_bias = bias.data();
  args.accumulate = true;
  scale()(args, pool);
  EXPECT_EQ(y, (std::vector<float>{12.5f, 27, -1, 17.5f, 34, -1}));
}

TEST(Scale, TakesANumberARow) {
  ThreadPool pool(2);
  const std::vector<float> x{1, 2, 3, 4}, factor{2, -0.5f};
  std::vector<float> y{10, 20, 30, 40};
  ScaleArgs args{x.data(), 2, y.data(), 2, 2, 2};
  args.row_factor = factor.data();
  args.accumulate = true;
  scale()(args, pool);
  EXPECT_EQ(y, (std::vector<float>{12, 24, 28.5f, 38}));
}

}  // namespace
}  // namespace coluber
