// SPDX-License-Identifier: Apache-2.0
#include "kernels/simd/transpose_units.h"

#include <gtest/gtest.h>

#include <vector>

namespace coluber {
namespace {

template <typename Unit>
void expect_transposed(int64_t from_stride, int64_t to_stride) {
  constexpr int64_t kSide = UnitSquare<Unit>::kSide, kBytes = sizeof(Unit);
  // One byte off any alignment, and bytes behind that nobody may touch.
  std::vector<std::byte> from(static_cast<size_t>(kSide * from_stride + 1));
  std::vector<std::byte> to(static_cast<size_t>((kSide - 1) * to_stride + 17 + 1), std::byte{0xEE});
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 37 + i / 256);
  UnitSquare<Unit>::transpose(from.data() + 1, from_stride, to.data() + 1, to_stride);
  for (int64_t r = 0; r < kSide; ++r) {
    for (int64_t c = 0; c < kSide; ++c) {
      for (int64_t b = 0; b < kBytes; ++b) {
        EXPECT_EQ(to[static_cast<size_t>(1 + c * to_stride + r * kBytes + b)],
                  from[static_cast<size_t>(1 + r * from_stride + c * kBytes + b)])
            << kBytes << " bytes, row " << r << ", column " << c;
      }
    }
  }
  EXPECT_EQ(to.front(), std::byte{0xEE});
  EXPECT_EQ(to.back(), std::byte{0xEE});
}

TEST(UnitSquare, PutsRowsIntoColumnsAtAnyAddressAndStride) {
  for (const int64_t stride : {16, 17, 100}) {
    expect_transposed<uint8_t>(stride, 33);
    expect_transposed<uint16_t>(stride, 18);
    expect_transposed<uint32_t>(stride, 64);
  }
}

}  // namespace
}  // namespace coluber
