// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "coluber/tensor_view.h"
#include "tensor/device.h"
#include "tensor/elastic_range.h"
#include "tensor/tensor_convert.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

TEST(Shapes, CountComparePrint) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.count(), 24);
  EXPECT_EQ(shape.to_string(), "[2, 3, 4]");
  EXPECT_EQ(Shape{}.count(), 1);
  EXPECT_EQ(Shape{}.to_string(), "[]");
  EXPECT_TRUE((shape == Shape{2, 3, 4}));
  EXPECT_FALSE((shape == Shape{2, 3}));
  EXPECT_FALSE((shape == Shape{2, 3, 5}));
  EXPECT_TRUE((contiguous_strides(shape) == Shape{12, 4, 1}));
}

TEST(Shapes, RefuseWhatCannotBe) {
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6, 7}), Error);
  EXPECT_THROW((Shape{2, -1}), Error);
  EXPECT_THROW((Shape{INT64_MAX, 2}).count(), Error);
  EXPECT_EQ((Shape{0, INT64_MAX, INT64_MAX}).count(), 0);
  EXPECT_THROW(TensorView::contiguous(nullptr, DType::kFloat32, Shape{INT64_MAX, 2}), Error);
}

TEST(TensorViews, KnowWhetherTheyAreContiguous) {
  float data[24] = {};
  TensorView view = TensorView::contiguous(data, DType::kFloat32, Shape{2, 3, 4});
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(view.size_bytes(), 96);
  view.strides = Shape{24, 4, 1};
  EXPECT_FALSE(view.is_contiguous());
  view.shape = Shape{1, 3, 4};  // a stride over a single element does not matter
  EXPECT_TRUE(view.is_contiguous());
  view.shape = Shape{0, 3, 4};
  EXPECT_TRUE(view.is_contiguous());
}

TEST(TensorConvert, FollowsStrides) {
  const float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  TensorView view = TensorView::contiguous(data, DType::kFloat32, Shape{3, 4});
  EXPECT_EQ(to_float_vector(view), std::vector<float>(data, data + 12));
  view.shape = Shape{4, 3};
  view.strides = Shape{1, 4};  // transposed
  EXPECT_EQ(to_float_vector(view), (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  view = TensorView::contiguous(data, DType::kFloat32, Shape{3, 2});
  view.strides = Shape{4, 1};  // rows with a gap
  EXPECT_EQ(to_float_vector(view), (std::vector<float>{0, 1, 4, 5, 8, 9}));
  EXPECT_EQ(to_float_vector(TensorView::contiguous(data, DType::kFloat32, Shape{})), std::vector<float>{0});
  EXPECT_TRUE(to_float_vector(TensorView::contiguous(data, DType::kFloat32, Shape{0, 4})).empty());
}

TEST(CpuDevice, AllocatesAligned) {
  Device& device = cpu_device();
  for (const int64_t bytes : {0, 1, 127, 100000}) {
    void* memory = device.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 128, 0U);
    device.fill(memory, std::byte{0xab}, bytes);
    device.deallocate(memory, bytes);
  }
  EXPECT_THROW(device.allocate(INT64_MAX / 2), Error);
}

// Physical memory behind an address range, as the kernel counts it.
int64_t resident_bytes(const void* base, int64_t bytes) {
  std::ifstream file("/proc/self/smaps");
  const auto first = reinterpret_cast<uintptr_t>(base), last = first + static_cast<uintptr_t>(bytes);
  std::string line;
  bool inside = false;
  int64_t total = 0;
  while (std::getline(file, line)) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin >= first && end <= last;
    } else if (inside && line.rfind("Rss:", 0) == 0) {
      total += std::atoll(line.c_str() + 4) << 10;
    }
  }
  return total;
}

TEST(ElasticRanges, MapGrowShrinkAtTheSameAddresses) {
  const int64_t slab = cpu_device().slab_bytes();
  ElasticRange range(cpu_device(), int64_t{1} << 36);  // 64 GiB of addresses
  std::byte* const base = range.base();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(base) % static_cast<uintptr_t>(slab), 0U);
  EXPECT_EQ(range.mapped_bytes(), 0);
  range.map(slab - 1, 2);  // touches two slabs
  EXPECT_EQ(range.mapped_bytes(), 2 * slab);
  EXPECT_TRUE(range.is_mapped(0, 2 * slab));
  EXPECT_FALSE(range.is_mapped(0, 2 * slab + 1));
  for (int64_t i = 0; i < 2 * slab; i += 4096) EXPECT_EQ(base[i], std::byte{0});
  std::memset(base, 7, static_cast<size_t>(2 * slab));
  range.map(0, 4 * slab);
  EXPECT_EQ(range.base(), base);
  EXPECT_EQ(base[2 * slab - 1], std::byte{7}) << "slabs that were there keep their content";
  EXPECT_EQ(base[2 * slab], std::byte{0});
}

TEST(ElasticRanges, GivePhysicalMemoryBack) {
  const int64_t slab = cpu_device().slab_bytes();
  ElasticRange range(cpu_device(), 8 * slab);
  range.map(0, 8 * slab);
  std::memset(range.base(), 1, static_cast<size_t>(8 * slab));
  EXPECT_EQ(resident_bytes(range.base(), range.max_bytes()), 8 * slab);
  range.unmap(1, 4 * slab - 2);  // only slabs 1 and 2 lie wholly inside
  EXPECT_EQ(range.mapped_bytes(), 6 * slab);
  EXPECT_EQ(resident_bytes(range.base(), range.max_bytes()), 6 * slab);
  EXPECT_TRUE(range.is_mapped(0, slab));
  EXPECT_FALSE(range.is_mapped(slab, 1));
  EXPECT_EQ(range.base()[slab - 1], std::byte{1});
  range.map(slab, 1);
  EXPECT_EQ(range.base()[slab], std::byte{0}) << "a slab that was given back reads as zero";
}

TEST(ElasticRanges, RefuseWhatLiesOutside) {
  ElasticRange range(cpu_device(), 1);
  EXPECT_EQ(range.max_bytes(), range.slab_bytes());
  EXPECT_THROW(range.map(0, range.max_bytes() + 1), Error);
  EXPECT_THROW(range.map(-1, 1), Error);
  EXPECT_THROW(range.unmap(range.max_bytes(), 1), Error);
  EXPECT_FALSE(range.is_mapped(INT64_MAX, 1));
  EXPECT_THROW(ElasticRange(cpu_device(), -1), Error);
  EXPECT_EQ(ElasticRange(cpu_device(), 0).max_bytes(), 0);
}

TEST(ElasticRanges, CannotBeTouchedUnmapped) {
  ElasticRange range(cpu_device(), cpu_device().slab_bytes());
  EXPECT_DEATH(*static_cast<volatile std::byte*>(range.base()) = std::byte{1}, "");
}

TEST(Workspaces, GiveAlignedPiecesThatDoNotOverlap) {
  Workspace workspace;
  std::vector<std::pair<std::byte*, int64_t>> pieces;
  for (int64_t bytes = 0; bytes < 200000; bytes = bytes * 2 + 3) {
    auto* piece = workspace.take<std::byte>(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % 64, 0U);
    std::memset(piece, static_cast<int>(pieces.size()), static_cast<size_t>(bytes));
    pieces.emplace_back(piece, bytes);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (int64_t j = 0; j < pieces[i].second; ++j) ASSERT_EQ(pieces[i].first[j], static_cast<std::byte>(i));
  }
}

TEST(Workspaces, StopGrowingOnceTheSizesAreKnown) {
  Workspace workspace;
  const auto step = [&workspace] {
    workspace.take<float>(100000);
    {
      const WorkspaceScope scope(workspace);
      workspace.take<float>(70000);
    }
    workspace.take<float>(50000);
    workspace.reset();
  };
  step();
  const int64_t capacity = workspace.capacity_bytes();
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(workspace.capacity_bytes(), capacity);
}

TEST(Workspaces, AScopeGivesBackWhatWasTakenInIt) {
  Workspace workspace;
  workspace.take<char>(10);
  void *first = nullptr, *second = nullptr;
  {
    const WorkspaceScope scope(workspace);
    first = workspace.take<char>(1000);
    workspace.take<char>(1 << 22);  // runs into a block of its own
  }
  {
    const WorkspaceScope scope(workspace);
    second = workspace.take<char>(1000);
  }
  EXPECT_EQ(first, second);
  EXPECT_THROW(workspace.take_bytes(-1), Error);
}

}  // namespace
}  // namespace coluber
