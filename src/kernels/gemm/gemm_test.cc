// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/op_test.h"

namespace coluber {
namespace {

struct Product {
  int64_t n, k;
  DType dtype;
  std::vector<float> exact;  // [N, K], the values as stored
  PackedMatrix packed;
};

Product make_product(int64_t n, int64_t k, DType dtype, ThreadPool& pool, uint64_t seed = 1) {
  Product product{n, k, dtype, random_floats(n * k, -1, 1, seed), {}};
  std::vector<std::byte> stored(static_cast<size_t>(dtype_bytes(dtype, n * k)));
  convert_from_float(product.exact.data(), n * k, dtype, stored.data());
  convert_to_float(stored.data(), dtype, n * k, product.exact.data());
  product.packed = PackedMatrix::pack(TensorView::contiguous(stored.data(), dtype, Shape{n, k}), pool);
  return product;
}

std::string describe(int64_t m, const Product& p) {
  return "m " + std::to_string(m) + ", n " + std::to_string(p.n) + ", k " + std::to_string(p.k) + ", " +
         std::string(dtype_name(p.dtype));
}

class Gemm : public ::testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{3};
  Workspace workspace_;
};
INSTANTIATE_TEST_SUITE_P(Weights, Gemm, ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

struct Case {
  int64_t m, n, k;
};
// Tails of every kind: rows of a tile, outputs of a panel, blocks of k, odd pairs.
constexpr Case kCases[] = {{1, 1, 1},      {1, 64, 64},    {1, 80, 1536},  {1, 130, 257}, {2, 65, 33},   {3, 47, 129},
                           {4, 200, 300},  {5, 16, 7},     {6, 128, 128},  {7, 97, 131},  {11, 63, 255}, {12, 144, 513},
                           {50, 80, 96},   {61, 257, 385}, {130, 33, 259}, {517, 70, 48}, {8, 96, 401},  {10, 64, 350},
                           {13, 130, 350}, {25, 80, 640},  {200, 130, 700}};

TEST_P(Gemm, CandidatesGiveTheReferencesBits) {
  for (const Case& c : kCases) {
    const Product product = make_product(c.n, c.k, GetParam(), pool_);
    const int64_t lda = c.k + 3, ldc = c.n + 5;
    const std::vector<float> a = random_floats(c.m * lda, -1, 1, 2), bias = random_floats(c.n, -1, 1, 3);
    const std::vector<float> before = random_floats(c.m * ldc, -1, 1, 4);
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(describe(c.m, product) + (accumulate ? ", accumulated" : ""));
      expect_candidates_agree(gemm(), kGemmTolerance, [&](GemmFunction f) {
        std::vector<float> out = before;  // the columns beyond N must stay
        f({a.data(), lda, c.m, &product.packed, accumulate ? bias.data() : nullptr, out.data(), ldc, accumulate, false},
          pool_, workspace_);
        return std::vector<OpOutput>{{"c", std::move(out)}};
      });
    }
  }
}

TEST_P(Gemm, ReferenceIsTheSumInDouble) {
  for (const Case& c : kCases) {
    const Product product = make_product(c.n, c.k, GetParam(), pool_);
    const std::vector<float> a = random_floats(c.m * c.k, -1, 1, 2), bias = random_floats(c.n, -1, 1, 3);
    std::vector<float> out = random_floats(c.m * c.n, -1, 1, 4), want = out;
    for (int64_t m = 0; m < c.m; ++m) {
      for (int64_t n = 0; n < c.n; ++n) {
        double sum = bias[n] + static_cast<double>(want[m * c.n + n]);
        for (int64_t k = 0; k < c.k; ++k) sum += static_cast<double>(a[m * c.k + k]) * product.exact[n * c.k + k];
        want[m * c.n + n] = static_cast<float>(sum);
      }
    }
    gemm().reference().function({a.data(), c.k, c.m, &product.packed, bias.data(), out.data(), c.n, true, false}, pool_,
                                workspace_);
    expect_close(out, want, kGemmExactTolerance, describe(c.m, product));
  }
}

TEST_P(Gemm, ARowDoesNotDependOnTheRowsBesideIt) {
  const Product product = make_product(150, 301, GetParam(), pool_);
  constexpr int64_t kRows = 29;
  const std::vector<float> a = random_floats(kRows * product.k, -1, 1, 2);
  for (const bool allow_bf16 : {false, true}) {
    std::vector<float> together(kRows * product.n);
    gemm()(
        GemmArgs{a.data(), product.k, kRows, &product.packed, nullptr, together.data(), product.n, false, allow_bf16},
        pool_, workspace_);
    for (const int64_t step : {1, 2, 3, 5, 6, 8}) {
      std::vector<float> apart(kRows * product.n);
      for (int64_t row = 0; row < kRows; row += step) {
        gemm()(GemmArgs{a.data() + row * product.k, product.k, std::min(step, kRows - row), &product.packed, nullptr,
                        apart.data() + row * product.n, product.n, false, allow_bf16},
               pool_, workspace_);
      }
      EXPECT_EQ(apart, together) << "in steps of " << step << (allow_bf16 ? ", bf16 products" : "");
    }
  }
}

TEST_P(Gemm, RoundedActivationsStayWithinTheTolerance) {
  for (const Case& c : kCases) {
    const Product product = make_product(c.n, c.k, GetParam(), pool_);
    const std::vector<float> a = random_floats(c.m * c.k, -1, 1, 2);
    SCOPED_TRACE(describe(c.m, product));
    expect_candidates_agree(gemm(), kGemmBf16Tolerance, [&](GemmFunction f) {
      std::vector<float> out(static_cast<size_t>(c.m * c.n));
      f({a.data(), c.k, c.m, &product.packed, nullptr, out.data(), c.n, false, true}, pool_, workspace_);
      return std::vector<OpOutput>{{"c", std::move(out)}};
    });
  }
}

TEST_P(Gemm, ANanInOneRowStaysInThatRow) {
  const Product product = make_product(70, 140, GetParam(), pool_);
  std::vector<float> a = random_floats(9 * product.k, -1, 1, 2), out(9 * product.n);
  a[4 * product.k + 17] = NAN;
  gemm()(GemmArgs{a.data(), product.k, 9, &product.packed, nullptr, out.data(), product.n, false, false}, pool_,
         workspace_);
  for (int64_t i = 0; i < 9 * product.n; ++i) EXPECT_EQ(std::isnan(out[i]), i / product.n == 4) << i;
}

TEST_P(Gemm, PackedRowsComeBackAsTheyWere) {
  for (const Case& c : kCases) {
    const Product product = make_product(c.n, c.k, GetParam(), pool_);
    std::vector<float> row(static_cast<size_t>(c.k));
    for (int64_t n = 0; n < c.n; ++n) {
      product.packed.unpack_row(n, row.data());
      ASSERT_TRUE(std::equal(row.begin(), row.end(), product.exact.begin() + n * c.k))
          << describe(0, product) << ", row " << n;
    }
    EXPECT_THROW(product.packed.unpack_row(c.n, row.data()), Error);
  }
}

TEST_P(Gemm, StridedAndUnalignedRowsArePacked) {
  constexpr int64_t kRows = 70, kCols = 37, kStride = 41;
  const std::vector<float> values = random_floats(kRows * kStride, -1, 1, 5);
  std::vector<std::byte> stored(static_cast<size_t>(dtype_bytes(GetParam(), kRows * kStride)) + 1);
  convert_from_float(values.data(), kRows * kStride, GetParam(), stored.data() + 1);
  TensorView view = TensorView::contiguous(stored.data() + 1, GetParam(), Shape{kRows, kStride});
  view.shape = Shape{kRows, kCols};
  const PackedMatrix packed = PackedMatrix::pack(view, pool_);
  std::vector<float> row(kCols), want(kCols);
  for (int64_t n = 0; n < kRows; ++n) {
    packed.unpack_row(n, row.data());
    convert_to_float(stored.data() + 1 + dtype_bytes(GetParam(), n * kStride), GetParam(), kCols, want.data());
    EXPECT_EQ(row, want) << n;
  }
}

TEST(PackedMatrix, RefusesWhatItCannotMultiply) {
  ThreadPool pool(1);
  std::vector<int64_t> data(16);
  const auto pack = [&](DType dtype, const Shape& shape) {
    return PackedMatrix::pack(TensorView::contiguous(data.data(), dtype, shape), pool);
  };
  EXPECT_THROW(pack(DType::kInt8, Shape{2, 2}), Error);
  EXPECT_THROW(pack(DType::kFloat32, Shape{4}), Error);
  EXPECT_THROW(pack(DType::kFloat32, Shape{0, 4}), Error);
  TensorView transposed = TensorView::contiguous(data.data(), DType::kFloat32, Shape{4, 4});
  transposed.strides = Shape{1, 4};
  EXPECT_THROW(PackedMatrix::pack(transposed, pool), Error);
}

TEST(GemmSelection, Bf16ProductsNeverPayWithoutTheInstructions) {
  if (active_isa() < Isa::kAvx512Bf16) {
    EXPECT_FALSE(bf16_products_pay());
  }
  EXPECT_EQ(bf16_products_pay(), bf16_products_pay());
}

TEST(GemmSelection, IsNotTheReferenceWhereThereIsAvx2) { expect_vectorised(gemm()); }

}  // namespace
}  // namespace coluber
