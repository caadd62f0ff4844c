// SPDX-License-Identifier: Apache-2.0
// Products on a device against the reference on the CPU: in float32 its bits, on the tensor cores within the bound of
// rounded activations, whatever the sizes, strides and alignments.
#include <limits>

#include "base/dtype.h"
#include "kernels/cuda_test.h"
#include "kernels/gemm/cublas_lt_cuda.h"
#include "kernels/gemm/gemm.h"
#include "tensor/cuda_step.h"

namespace coluber {
namespace {

struct Sizes {
  int64_t m, n, k;
  int64_t shift = 0;  // of A, C and the bias from where memory begins, in elements
};

struct Product {
  Sizes sizes;
  DType dtype;
  bool bias = false, accumulate = false;
  std::vector<float> a, w, b, c;
  int64_t lda = 0, ldc = 0;

  Product(const Sizes& s, DType dtype, bool bias, bool accumulate, int64_t padding = 0)
      : sizes(s),
        dtype(dtype),
        bias(bias),
        accumulate(accumulate),
        a(random_floats(s.shift + s.m * (s.k + padding), -1, 1, 1)),
        w(random_floats(s.n * s.k, -1, 1, 2)),
        b(random_floats(s.shift + s.n, -1, 1, 3)),
        c(random_floats(s.shift + s.m * (s.n + padding), -1, 1, 4)),
        lda(s.k + padding),
        ldc(s.n + padding) {}
  float& at(int64_t row, int64_t k) { return a[static_cast<size_t>(sizes.shift + row * lda + k)]; }
  void set_row(int64_t row, float value) {
    for (int64_t k = 0; k < sizes.k; ++k) at(row, k) *= value;
  }
  GemmArgs args(const float* a, const PackedMatrix& w, const float* b, float* c) const {
    const int64_t shift = sizes.shift;
    return {a + shift, lda, sizes.m, &w, bias ? b + shift : nullptr, c + shift, ldc, accumulate, false};
  }
  std::vector<std::byte> stored() const {
    std::vector<std::byte> bytes(static_cast<size_t>(dtype_bytes(dtype, std::ssize(w))));
    convert_from_float(w.data(), std::ssize(w), dtype, bytes.data());
    return bytes;
  }
};

class GemmCuda : public CudaTest {
 protected:
  std::vector<float> reference(const Product& p) {
    ThreadPool pool(1);
    Workspace workspace;
    const std::vector<std::byte> stored = p.stored();
    const PackedMatrix w =
        PackedMatrix::pack(TensorView::contiguous(stored.data(), p.dtype, Shape{p.sizes.n, p.sizes.k}), pool);
    std::vector<float> c = p.c;
    gemm().reference().function(p.args(p.a.data(), w, p.b.data(), c.data()), pool, workspace);
    return c;
  }
  std::vector<float> on_device(const Product& p, bool allow_bf16) {
    const std::vector<std::byte> stored = p.stored();
    const PackedMatrix w =
        PackedMatrix::upload(TensorView::contiguous(stored.data(), p.dtype, Shape{p.sizes.n, p.sizes.k}), *device_);
    Uploads uploads(*device_);
    ThreadPool pool(1);
    Workspace workspace(*device_);
    CudaStep step(*device_);
    step.begin();
    auto* c = const_cast<float*>(uploads.add(p.c));
    GemmArgs args = p.args(uploads.add(p.a), w, uploads.add(p.b), c);
    args.allow_bf16 = allow_bf16;
    gemm()(args, Execution{&pool, &workspace, &step});
    device_->synchronize();
    std::vector<float> result(p.c.size());
    uploads.fetch(c, result);
    return result;
  }
  // Skips where nothing but float32 products can run.
  void need_tensor_cores() {
    const char* note = device_->library().function<ProductsNoteFunction>(kProductsNote)();
    if (std::string_view(note).find("float32") != std::string_view::npos) GTEST_SKIP() << note;
  }
  void expect_narrow_agrees(const Product& p) {
    SCOPED_TRACE(testing::Message() << "m " << p.sizes.m << ", n " << p.sizes.n << ", k " << p.sizes.k << ", "
                                    << dtype_name(p.dtype) << ", rows " << p.lda << " and " << p.ldc << " apart, "
                                    << p.sizes.shift << " elements in" << (p.bias ? ", bias" : "")
                                    << (p.accumulate ? ", accumulated" : ""));
    const std::vector<float> got = on_device(p, true);
    expect_close(got, reference(p), kGemmBf16Tolerance, "c");
    expect_same_bits(got, on_device(p, true));
    for (int64_t row = 0; row < p.sizes.m; ++row)
      for (int64_t at = p.sizes.shift + row * p.ldc + p.sizes.n; at < p.sizes.shift + (row + 1) * p.ldc; ++at)
        ASSERT_EQ(got[static_cast<size_t>(at)], p.c[static_cast<size_t>(at)]) << "between rows, behind row " << row;
  }
};

constexpr Sizes kSizes[] = {{1, 64, 64},     {1, 130, 4096},  {2, 65, 72},       {3, 200, 264},    {7, 97, 128},
                            {16, 1000, 512}, {33, 257, 1000}, {65, 320, 256},    {128, 64, 2048},  {129, 515, 72, 1},
                            {517, 70, 80},   {5, 64, 96, 2},  {300, 300, 64, 3}, {1, 2048, 64, 1}, {24, 4099, 136}};
// Of these nothing is narrow: small, or rows that do not begin at multiples of 16 bytes.
constexpr Sizes kOddSizes[] = {{1, 1, 1}, {3, 47, 129}, {50, 80, 97}, {130, 33, 259}, {61, 257, 385}, {40, 31, 64, 1}};

TEST_F(GemmCuda, InFloat32HasTheReferencesBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const auto& list : {std::span<const Sizes>(kSizes), std::span<const Sizes>(kOddSizes)})
      for (const Sizes& sizes : list) {
        const Product p(sizes, dtype, sizes.m % 2 == 0, sizes.n % 2 == 0, sizes.m % 3);
        expect_same_bits(on_device(p, false), reference(p));
      }
}

TEST_F(GemmCuda, RoundedActivationsStayWithinTheBound) {
  need_tensor_cores();
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const Sizes& sizes : kSizes)
      for (const int64_t padding : {0, 1, 4, 8})
        for (const bool plain : {true, false}) expect_narrow_agrees(Product(sizes, dtype, !plain, !plain, padding));
}

TEST_F(GemmCuda, TensorCoresAreUsedWhereTheyMayBeAndNowhereElse) {
  need_tensor_cores();
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Product p({33, 256, 512}, dtype, true, false);
    EXPECT_NE(on_device(p, true), reference(p)) << dtype_name(dtype) << ": the bits of float32 products";
    for (const Sizes& sizes : kOddSizes) {
      const Product odd(sizes, dtype, false, true);
      expect_same_bits(on_device(odd, true), reference(odd));
    }
  }
  const Product wide({33, 256, 512}, DType::kFloat32, true, false);
  expect_same_bits(on_device(wide, true), reference(wide));
}

// Rows that float16 cannot hold are computed in float32, and no row disturbs another.
TEST_F(GemmCuda, RowsBeyondFloat16AreComputedInFloat32) {
  need_tensor_cores();
  for (const bool plain : {true, false}) {
    const Product before({21, 200, 512}, DType::kFloat16, !plain, !plain, 3);
    Product p = before;
    p.set_row(2, 1e6f);
    p.set_row(5, 1e-7f);
    p.set_row(6, 0.0f);
    p.set_row(11, 3e35f);
    p.set_row(20, 70000.0f);
    const std::vector<float> got = on_device(p, true), want = reference(p), others = on_device(before, true);
    for (int64_t row = 0; row < p.sizes.m; ++row) {
      const bool is_changed = row == 2 || row == 5 || row == 6 || row == 11 || row == 20;
      const auto slice = [&](const std::vector<float>& c) {
        return std::vector<float>(c.begin() + row * p.ldc, c.begin() + row * p.ldc + p.sizes.n);
      };
      if (is_changed) {
        expect_close(slice(got), slice(want), kGemmExactTolerance, "row " + std::to_string(row));
      } else {
        expect_same_bits(slice(got), slice(others));
      }
    }
  }
}

TEST_F(GemmCuda, WhatIsNotFiniteStaysInItsRow) {
  need_tensor_cores();
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Product before({9, 128, 256}, dtype, true, false);
    Product p = before;
    p.at(1, 3) = std::numeric_limits<float>::infinity();
    p.at(4, 255) = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> got = on_device(p, true), others = on_device(before, true);
    for (int64_t row = 0; row < p.sizes.m; ++row)
      for (int64_t n = 0; n < p.sizes.n; ++n) {
        const auto at = static_cast<size_t>(row * p.ldc + n);
        if (row == 1 || row == 4) {
          ASSERT_FALSE(std::isfinite(got[at])) << "row " << row << ", output " << n;
        } else {
          ASSERT_EQ(got[at], others[at]) << "row " << row << ", output " << n;
        }
      }
  }
}

}  // namespace
}  // namespace coluber
