// SPDX-License-Identifier: Apache-2.0
//
// Weights whose columns stand in an order of their own (TensorView::column_order).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/op_test.h"
#include "kernels/quant/scaled_types.h"
#include "tensor/tensor_convert.h"

namespace coluber {
namespace {

constexpr int64_t kN = 37, kK = 96, kRows = 11;

struct Weight {
  std::vector<std::byte> blocks;
  std::vector<int32_t> order;
  TensorView view;

  explicit Weight(uint32_t seed) : order(kK) {
    const ScaledType type{ScaledCode::kInt4, 32};
    std::mt19937 random(seed);
    blocks.resize(static_cast<size_t>(kN * kK / type.group * scaled_block_bytes(type)));
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(random());
    for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(scaled_block_bytes(type))) {
      const float scale = static_cast<float>(random() % 1000 + 1) / 4096.0f;
      std::memcpy(blocks.data() + at, &scale, sizeof scale);
    }
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    view = TensorView::contiguous(blocks.data(), scaled_dtype(type), Shape{kN, kK});
  }
};

TEST(ColumnOrder, ConversionPutsColumnsInPlace) {
  Weight w(1);
  const std::vector<float> as_stored = to_float_vector(w.view);
  w.view.column_order = w.order.data();
  const std::vector<float> in_place = to_float_vector(w.view);
  for (int64_t n = 0; n < kN; ++n)
    for (int64_t k = 0; k < kK; ++k)
      ASSERT_EQ(in_place[static_cast<size_t>(n * kK + w.order[static_cast<size_t>(k)])],
                as_stored[static_cast<size_t>(n * kK + k)]);
}

TEST(ColumnOrder, RowsOfAPackedWeightAreInPlace) {
  Weight w(2);
  w.view.column_order = w.order.data();
  ThreadPool pool(2);
  const PackedMatrix packed = PackedMatrix::pack(w.view, pool);
  const std::vector<float> expected = to_float_vector(w.view);
  std::vector<float> row(kK);
  for (int64_t n = 0; n < kN; ++n) {
    packed.unpack_row(n, row.data());
    ASSERT_TRUE(std::equal(row.begin(), row.end(), expected.begin() + n * kK)) << n;
  }
}

// Gathering the input is all that the order does.
TEST(ColumnOrder, ProductsGatherTheirInput) {
  Weight w(3);
  ThreadPool pool(2);
  Workspace workspace;
  std::mt19937 random(4);
  constexpr int64_t kStride = kK + 5;
  std::vector<float> x(kRows * kStride), gathered(kRows * kK);
  for (float& value : x) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  for (int64_t m = 0; m < kRows; ++m)
    for (int64_t k = 0; k < kK; ++k)
      gathered[static_cast<size_t>(m * kK + k)] = x[static_cast<size_t>(m * kStride + w.order[static_cast<size_t>(k)])];
  const PackedMatrix plain = PackedMatrix::pack(w.view, pool);
  w.view.column_order = w.order.data();
  const PackedMatrix ordered = PackedMatrix::pack(w.view, pool);
  EXPECT_EQ(ordered.column_order().size(), static_cast<size_t>(kK));
  for (const int64_t rows : {int64_t{1}, int64_t{3}, kRows}) {
    std::vector<float> expected(kRows * kN, -1.0f), found = expected;
    gemm()(GemmArgs{.a = gathered.data(), .lda = kK, .m = rows, .w = &plain, .c = expected.data(), .ldc = kN}, pool,
           workspace);
    gemm()(GemmArgs{.a = x.data(), .lda = kStride, .m = rows, .w = &ordered, .c = found.data(), .ldc = kN}, pool,
           workspace);
    EXPECT_EQ(found, expected) << rows << " rows";
  }
}

TEST(ColumnOrder, CandidatesAgree) {
  Weight w(5);
  w.view.column_order = w.order.data();
  ThreadPool pool(2);
  Workspace workspace;
  const PackedMatrix packed = PackedMatrix::pack(w.view, pool);
  std::mt19937 random(6);
  std::vector<float> x(kRows * kK);
  for (float& value : x) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  expect_candidates_agree(gemm(), kGemmTolerance, [&](GemmFunction function) {
    std::vector<float> found(kRows * kN);
    function(GemmArgs{.a = x.data(), .lda = kK, .m = kRows, .w = &packed, .c = found.data(), .ldc = kN}, pool,
             workspace);
    return std::vector<OpOutput>{{"c", found}};
  });
}

TEST(ColumnOrder, IsOnlyForBlocks) {
  const std::vector<float> values(6);
  const std::vector<int32_t> order = {2, 0, 1};
  ThreadPool pool(1);
  TensorView view = TensorView::contiguous(values.data(), DType::kFloat32, Shape{2, 3});
  view.column_order = order.data();
  EXPECT_THROW(PackedMatrix::pack(view, pool), Error);
}

}  // namespace
}  // namespace coluber
