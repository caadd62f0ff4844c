// SPDX-License-Identifier: Apache-2.0
#include "cache/host_buffers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace coluber {
namespace {

constexpr int64_t kMega = int64_t{1} << 20;

TEST(HostBuffers, TheNextBufferIsTheOneThatCameBack) {
  HostBuffers buffers;
  std::byte* first = nullptr;
  {
    const HostBuffers::Buffer buffer = buffers.take(30 * kMega);
    first = buffer.data();
    std::memset(first, 5, static_cast<size_t>(30 * kMega));
    EXPECT_EQ(buffers.kept_bytes(), 0);
  }
  EXPECT_EQ(buffers.kept_bytes(), 30 * kMega);
  const HostBuffers::Buffer again = buffers.take(20 * kMega);
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(buffers.kept_bytes(), 0);
  const HostBuffers::Buffer other = buffers.take(20 * kMega);
  ASSERT_NE(other.data(), nullptr);
  EXPECT_NE(other.data(), first);
}

TEST(HostBuffers, KeepNoMoreThanTheLargest) {
  HostBuffers buffers;
  {
    std::vector<HostBuffers::Buffer> held;
    for (int i = 0; i < 10; ++i) held.push_back(buffers.take(24 * kMega));
  }
  EXPECT_EQ(buffers.kept_bytes(), 24 * kMega);
  buffers.drop_kept();
  EXPECT_EQ(buffers.kept_bytes(), 0);
}

TEST(HostBuffers, ALargeOneIsNotSpentOnALittle) {
  HostBuffers buffers;
  {
    const HostBuffers::Buffer large = buffers.take(64 * kMega);
  }
  const HostBuffers::Buffer little = buffers.take(4 * kMega);
  EXPECT_LT(little.capacity(), 8 * kMega);
  EXPECT_EQ(buffers.kept_bytes(), 64 * kMega);
}

TEST(HostBuffers, MemoryThatIsNotThereIsNoData) {
  HostBuffers buffers;
  EXPECT_EQ(buffers.take(std::numeric_limits<int64_t>::max() / 4).data(), nullptr);
  EXPECT_NE(buffers.take(0).data(), nullptr);
}

}  // namespace
}  // namespace coluber
