// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/op_test.h"

namespace coluber {
namespace {

constexpr int64_t kColumns[] = {1, 7, 16, 33, 64, 100, 129, 768, 1030};
constexpr int64_t kGap = 5;  // between rows; must stay untouched

struct Rows {
  Rows(int64_t num_rows, int64_t num_cols, float low = -3, float high = 3)
      : rows(num_rows),
        cols(num_cols),
        stride(num_cols + kGap),
        x(random_floats(rows * stride, low, high, 1)),
        z(random_floats(rows * stride, -8, 8, 2)),
        weight(random_floats(cols, 0.5f, 1.5f, 3)),
        bias(random_floats(cols, -1, 1, 4)) {}
  RmsNormArgs args(std::vector<float>& y, bool weighted, float offset = 0) const {
    return {x.data(), stride, y.data(), stride, rows, cols, weighted ? weight.data() : nullptr, offset, 1e-5f};
  }
  std::vector<float> out() const { return std::vector<float>(static_cast<size_t>(rows * stride), -9.0f); }

  int64_t rows, cols, stride;
  std::vector<float> x, z, weight, bias;
};

class Norm : public ::testing::Test {
 protected:
  ThreadPool pool_{3};
};

TEST_F(Norm, RmsNormCandidatesAgree) {
  for (int64_t cols : kColumns) {
    for (int64_t rows : {1, 5, 40}) {
      const Rows data(rows, cols);
      for (const bool weighted : {false, true}) {
        SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(cols));
        expect_candidates_agree(rms_norm(), kNormTolerance, [&](RmsNormFunction f) {
          std::vector<float> y = data.out();
          f(data.args(y, weighted, 1.0f), pool_);
          return std::vector<OpOutput>{{"y", std::move(y)}};
        });
      }
    }
  }
}

TEST_F(Norm, GatedCandidatesAgreeInBothOrders) {
  for (int64_t cols : {8, 48, 96, 264, 1536}) {
    for (int64_t groups : {1, 2, 8}) {
      for (const Gate gate : {Gate::kSilu, Gate::kSigmoid}) {
        const Rows data(7, cols);
        SCOPED_TRACE(std::to_string(cols) + " columns in " + std::to_string(groups) + " groups");
        for (const auto* operation : {&gate_then_rms_norm(), &rms_norm_then_gate()}) {
          expect_candidates_agree(*operation, kNormTolerance, [&](GatedRmsNormFunction f) {
            std::vector<float> y = data.out();
            f({data.args(y, groups != 2), data.z.data(), data.stride, groups, gate}, pool_);
            return std::vector<OpOutput>{{"y", std::move(y)}};
          });
        }
      }
    }
  }
}

TEST_F(Norm, LayerNormCandidatesAgree) {
  for (int64_t cols : kColumns) {
    if (cols == 1) continue;  // x - mean(x) is 0 for one column, and its rounding is all there is
    const Rows data(6, cols, -1, 3);
    expect_candidates_agree(layer_norm(), kNormTolerance, [&](LayerNormFunction f) {
      std::vector<float> y = data.out(), bare = data.out();
      f({data.args(y, true), data.bias.data()}, pool_);
      f({data.args(bare, false), nullptr}, pool_);
      return std::vector<OpOutput>{{"y", std::move(y)}, {"without weight and bias", std::move(bare)}};
    });
  }
}

TEST_F(Norm, ReferencesGiveWhatTheFormulasSay) {
  const std::vector<float> x = {3, 4, 0, 0}, z = {1, -1, 2, 0}, weight = {1, 2, 3, 4};
  std::vector<float> y(4);
  const RmsNormArgs args = {x.data(), 4, y.data(), 4, 1, 4, weight.data(), 0, 0};
  rms_norm().reference().function(args, pool_);
  EXPECT_NEAR(y[0], 3 / 2.5, 1e-6);
  EXPECT_NEAR(y[1], 4 / 2.5 * 2, 1e-6);
  rms_norm_then_gate().reference().function({args, z.data(), 4, 2, Gate::kSigmoid}, pool_);
  EXPECT_NEAR(y[0], 3 / std::sqrt(12.5) / (1 + std::exp(-1.0)), 1e-6);
  RmsNormArgs half = args;
  half.eps = 0.5f;
  gate_then_rms_norm().reference().function({half, z.data(), 4, 1, Gate::kSilu}, pool_);
  const double u0 = 3 / (1 + std::exp(-1.0)), u1 = -4 / (1 + std::exp(1.0));
  EXPECT_NEAR(y[1], u1 / std::sqrt((u0 * u0 + u1 * u1) / 4 + 0.5) * 2, 1e-6);
  layer_norm().reference().function({args, z.data()}, pool_);
  EXPECT_NEAR(y[2], (0 - 1.75) / std::sqrt((1.25 * 1.25 + 2.25 * 2.25 + 2 * 1.75 * 1.75) / 4) * 3 + 2, 1e-6);
}

TEST_F(Norm, WorksInPlace) {
  Rows data(9, 130);
  std::vector<float> y = data.out();
  gate_then_rms_norm()(GatedRmsNormArgs{data.args(y, true), data.z.data(), data.stride, 2, Gate::kSilu}, pool_);
  std::vector<float> in_place = data.x;
  GatedRmsNormArgs args = {data.args(in_place, true), data.z.data(), data.stride, 2, Gate::kSilu};
  args.norm.x = in_place.data();
  gate_then_rms_norm()(args, pool_);
  for (int64_t row = 0; row < data.rows; ++row) {
    for (int64_t c = 0; c < data.cols; ++c) EXPECT_EQ(in_place[row * data.stride + c], y[row * data.stride + c]);
  }
}

TEST_F(Norm, ARowDoesNotDependOnTheRowsBesideIt) {
  const Rows data(64, 321);
  std::vector<float> together = data.out(), apart = data.out();
  rms_norm()(data.args(together, true), pool_);
  for (int64_t row = 0; row < data.rows; ++row) {
    RmsNormArgs args = data.args(apart, true);
    args.rows = 1;
    args.x += row * data.stride;
    args.y += row * data.stride;
    rms_norm()(args, pool_);
  }
  EXPECT_EQ(apart, together);
}

TEST_F(Norm, RefusesGroupsThatDoNotDivideTheColumns) {
  const Rows data(2, 30);
  std::vector<float> y = data.out();
  const GatedRmsNormArgs args = {data.args(y, true), data.z.data(), data.stride, 4, Gate::kSilu};
  EXPECT_THROW(gate_then_rms_norm()(args, pool_), Error);
}

TEST_F(Norm, IsNotTheReferenceWhereThereIsAvx2) {
  expect_vectorised(rms_norm());
  expect_vectorised(gate_then_rms_norm());
  expect_vectorised(rms_norm_then_gate());
  expect_vectorised(layer_norm());
}

}  // namespace
}  // namespace coluber
