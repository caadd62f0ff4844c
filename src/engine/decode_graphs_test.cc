// SPDX-License-Identifier: Apache-2.0
#include "engine/decode_graphs.h"

#include <gtest/gtest.h>

namespace coluber {
namespace {

TEST(DecodeGraphs, FewSizesStandForAllAndNoneIsMuchLarger) {
  for (const auto& [rows, padded] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 8}, {8, 8}, {9, 16}, {17, 24}, {255, 256}, {256, 256}})
    EXPECT_EQ(DecodeGraphs::bucket(rows), padded) << rows << " rows";
  EXPECT_EQ(DecodeGraphs::bucket(DecodeGraphs::kMostRows + 1), DecodeGraphs::kMostRows + 1) << "beyond: no padding";
  for (int64_t rows = 1; rows <= DecodeGraphs::kMostRows; ++rows) {
    EXPECT_GE(DecodeGraphs::bucket(rows), rows);
    EXPECT_LT(DecodeGraphs::bucket(rows), rows + 8);
  }
}

}  // namespace
}  // namespace coluber
