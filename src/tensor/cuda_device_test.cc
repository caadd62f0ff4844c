// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda_device.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "tensor/cuda_step.h"
#include "tensor/elastic_range.h"

namespace coluber {
namespace {

TEST(CudaLibrary, WhatIsMissingIsSaid) {
  std::string why;
  if (CudaLibrary::find(&why) != nullptr) GTEST_SKIP() << "there is a library and a device";
  EXPECT_FALSE(why.empty());
  EXPECT_THROW(CudaLibrary::get(), Error);
  EXPECT_THROW(cuda_device(), Error);
}

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (CudaLibrary::find(&why) == nullptr) GTEST_SKIP() << why;
    device_ = &cuda_device();
  }
  CudaDevice* device_ = nullptr;
};

TEST_F(CudaDeviceTest, ARangeGrowsAndShrinksAndNewMemoryReadsAsZero) {
  const int64_t slab = device_->slab_bytes();
  ElasticRange range(*device_, 8 * slab);
  for (int round = 0; round < 2; ++round) {
    range.map(2 * slab, 3 * slab);
    EXPECT_EQ(range.mapped_bytes(), 3 * slab);
    std::vector<uint8_t> seen(64, 1);
    device_->copy(seen.data(), range.base() + 3 * slab, 64);
    EXPECT_EQ(seen, std::vector<uint8_t>(64, 0));
    device_->fill(range.base() + 2 * slab, std::byte{7}, 3 * slab);
    device_->copy(seen.data(), range.base() + 5 * slab - 64, 64);
    EXPECT_EQ(seen, std::vector<uint8_t>(64, 7));
    range.unmap(2 * slab, 3 * slab);
    EXPECT_EQ(range.mapped_bytes(), 0);
  }
}

TEST_F(CudaDeviceTest, MemoryThatIsNotThereIsRefusedWithTheBytes) {
  try {
    device_->allocate(int64_t{1} << 50);
    FAIL() << "a pebibyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("1125899906842624"), std::string::npos) << error.what();
  }
  void* memory = device_->allocate(1024);  // the refusal leaves nothing behind
  device_->deallocate(memory, 1024);
}

TEST_F(CudaDeviceTest, ArraysOfTheSameSizesLieAtTheSamePlaceInEveryStep) {
  CudaStep step(*device_);
  const auto values_of = [&](const void* at, size_t count) {
    std::vector<int32_t> values(count);
    device_->copy(values.data(), at, static_cast<int64_t>(count * sizeof(int32_t)));
    return values;
  };
  const void *first_place = nullptr, *second_place = nullptr;
  for (int32_t round = 0; round < 3; ++round) {
    const std::vector<int32_t> first = {1 + round, 2, 3}, none, second = {7, 8 - round};
    EXPECT_EQ(step.begin_with(std::vector{host_array(first), host_array(none), host_array(second)}), round == 0);
    const void *a = step.array(first.data(), 12), *b = step.array(second.data(), 8);
    EXPECT_EQ(values_of(a, 3), first);
    EXPECT_EQ(values_of(b, 2), second);
    EXPECT_TRUE(round == 0 || (a == first_place && b == second_place)) << "moved in round " << round;
    first_place = a;
    second_place = b;
    const std::vector<int32_t> other = {5};
    step.set_recording(true);
    EXPECT_THROW(step.array(other.data(), 4), Error) << "a replay would read what lay there once";
    EXPECT_EQ(step.array(first.data(), 12), a);
    step.set_recording(false);
    EXPECT_EQ(values_of(step.array(other.data(), 4), 1), other);
  }
}

TEST_F(CudaDeviceTest, AnOrdinalThatIsNotThereIsRefused) {
  EXPECT_THROW(cuda_device(-1), Error);
  EXPECT_THROW(cuda_device(1000), Error);
}

}  // namespace
}  // namespace coluber
