// SPDX-License-Identifier: Apache-2.0
#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "coluber/error.h"

namespace coluber {
namespace {

TEST(PagePool, HandsOutTheLowestFreePageAndNeverTheNullPage) {
  PagePool pool(cpu_device(), "test", 256, 200);
  EXPECT_EQ(pool.num_free(), 199);
  for (int32_t expected = 1; expected < 200; ++expected) ASSERT_EQ(pool.allocate(), expected);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  EXPECT_EQ(pool.num_free(), 0);
  pool.release(150);
  pool.release(3);
  EXPECT_EQ(pool.allocate(), 3);
  EXPECT_EQ(pool.allocate(), 150);
  EXPECT_EQ(pool.allocate(), std::nullopt);
}

TEST(PagePool, ReleasingWhatIsNotInUseIsABrokenInvariant) {
  PagePool pool(cpu_device(), "test", 64, 8);
  EXPECT_THROW(pool.release(1), Error);
  const int32_t page = *pool.allocate();
  pool.release(page);
  EXPECT_THROW(pool.release(page), Error);
  EXPECT_THROW(pool.release(0), Error);
  EXPECT_THROW(pool.release(-1), Error);
  EXPECT_THROW(pool.release(8), Error);
  EXPECT_EQ(pool.num_used(), 0);
}

TEST(PagePool, MapsMemoryAsPagesGrowAndGivesItBack) {
  Device& device = cpu_device();
  const int64_t slab = device.slab_bytes();
  PagePool pool(device, "test", slab / 2, 64);
  EXPECT_EQ(pool.mapped_bytes(), 0);
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(pool.allocate());  // pages 1 to 9, slabs 0 to 4
  EXPECT_EQ(pool.mapped_bytes(), 5 * slab);
  std::memset(pool.page(5), 0x5A, static_cast<size_t>(pool.page_bytes()));
  for (const int32_t page : {2, 3, 6, 7, 8, 9}) pool.release(page);
  pool.trim();
  // Used are 1 (slab 0), 4 and 5 (slab 2).
  EXPECT_EQ(pool.mapped_bytes(), 2 * slab);
  EXPECT_EQ(*pool.page(5), std::byte{0x5A});
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.mapped_bytes(), 3 * slab);
  EXPECT_EQ(*pool.page(2), std::byte{0});
  for (const int32_t page : {1, 2, 4, 5}) pool.release(page);
  pool.trim();
  EXPECT_EQ(pool.mapped_bytes(), 0);
}

TEST(PagePool, CountsTheSlabsThatHoldFreePagesOnly) {
  Device& device = cpu_device();
  const int64_t slab = device.slab_bytes();
  PagePool pool(device, "test", slab / 4, 64);
  for (int i = 0; i < 11; ++i) ASSERT_TRUE(pool.allocate());  // pages 1 to 11, slabs 0 to 2
  EXPECT_EQ(pool.idle_bytes(), 0);
  for (const int32_t page : {4, 5, 6, 7, 8, 9, 10}) pool.release(page);
  EXPECT_EQ(pool.idle_bytes(), slab);  // slab 2 still holds page 11
  pool.release(11);
  EXPECT_EQ(pool.idle_bytes(), 2 * slab);
  pool.trim(slab);
  EXPECT_EQ(pool.mapped_bytes(), 2 * slab);
  EXPECT_EQ(pool.idle_bytes(), slab);
  EXPECT_EQ(pool.allocate(), 4);  // the idle slab serves again
  EXPECT_EQ(pool.idle_bytes(), 0);
  EXPECT_EQ(pool.mapped_bytes(), 2 * slab);
}

TEST(PagePool, RunsAndSinglePagesShareOnePool) {
  PagePool pages(cpu_device(), "pages", 256, 13);  // ids 1 to 12
  PagePool runs(pages, "runs", 3);
  EXPECT_EQ(runs.page_bytes(), 3 * 256);
  EXPECT_EQ(runs.num_free(), 4);
  EXPECT_EQ(runs.allocate(), 1);
  EXPECT_EQ(pages.allocate(), 12);
  EXPECT_EQ(runs.allocate(), 4);
  EXPECT_EQ(pages.allocate(), 11);
  EXPECT_EQ(runs.page(4) - runs.page(1), 3 * 256);
  EXPECT_EQ(runs.page(4), pages.page(4));
  EXPECT_EQ(runs.allocate(), 7);
  EXPECT_EQ(pages.allocate(), 10);
  EXPECT_EQ(runs.allocate(), std::nullopt);
  EXPECT_EQ(pages.allocate(), std::nullopt);
  runs.release(4);
  EXPECT_EQ(pages.num_free(), 3);
  EXPECT_EQ(pages.allocate(), 6) << "what was a run serves as pages";
  EXPECT_EQ(runs.allocate(), std::nullopt) << "two neighbours are no run of three";
  pages.release(6);
  EXPECT_EQ(runs.allocate(), 4);
  EXPECT_EQ(runs.num_used(), 3);
  EXPECT_EQ(pages.num_used(), 3);
  for (const int32_t id : {1, 4, 7}) EXPECT_TRUE(runs.release(id));
  for (const int32_t id : {10, 11, 12}) EXPECT_TRUE(pages.release(id));
  EXPECT_EQ(pages.num_free(), 12);
  pages.trim();
  EXPECT_EQ(pages.mapped_bytes(), 0);
  EXPECT_THROW(PagePool(pages, "too long", 13), Error);
}

TEST(PagePool, PoisonIsNaNInEveryStateType) {
  PagePool pool(cpu_device(), "test", 64, 4);
  pool.set_poison(true);
  std::byte* page = pool.page(*pool.allocate());
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    float value = 0;
    convert_to_float(page, dtype, 1, &value);
    EXPECT_TRUE(std::isnan(value)) << dtype_name(dtype);
  }
}

TEST(PagePool, AddressesBeyondFourGigabytesDoNotWrap) {
  const int64_t page_bytes = int64_t{3} << 30;
  PagePool pool(cpu_device(), "test", page_bytes, 5);
  EXPECT_EQ(pool.page(4) - pool.base(), 4 * page_bytes);
}

TEST(PagePool, ImpossibleSizesAreRefused) {
  EXPECT_THROW(PagePool(cpu_device(), "test", 0, 8), Error);
  EXPECT_THROW(PagePool(cpu_device(), "test", 64, 1), Error);
  EXPECT_THROW(PagePool(cpu_device(), "test", int64_t{1} << 62, 8), Error);
}

TEST(PagePool, APageIsFreeWhenItsLastReferenceGoes) {
  PagePool pool(cpu_device(), "test", 64, 4);
  const int32_t page = *pool.allocate();
  pool.retain(page);
  EXPECT_EQ(pool.ref_count(page), 2);
  EXPECT_FALSE(pool.release(page));
  EXPECT_TRUE(pool.in_use(page));
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_TRUE(pool.release(page));
  EXPECT_EQ(pool.ref_count(page), 0);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_THROW(pool.retain(page), Error);
  EXPECT_THROW(pool.release(page), Error);
  EXPECT_EQ(*pool.allocate(), page);
  EXPECT_EQ(pool.ref_count(page), 1);
}

}  // namespace
}  // namespace coluber
