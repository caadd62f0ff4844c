// SPDX-License-Identifier: Apache-2.0
#include "models/residual_block.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/thread_pool.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

constexpr int64_t kTokens = 3, kWidth = 4;

// y = factor * x + offset
struct Affine {
  float factor, offset;
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) const {
    for (int64_t i = 0; i < batch.num_tokens() * kWidth; ++i)
      y[i] = (accumulate ? y[i] : 0.0f) + factor * x[i] + offset;
  }
};

std::vector<float> run(ResidualBlock& block, const std::vector<float>& input) {
  ThreadPool pool(2);
  Workspace workspace;
  const std::vector<int32_t> ids(kTokens);
  ForwardBatch batch;
  batch.token_ids = ids;
  batch.thread_pool = &pool;
  batch.workspace = &workspace;
  std::vector<float> x = input;
  DecoderStream stream;
  stream.x = x.data();
  block.forward(batch, stream);
  return x;
}

std::vector<float> normed(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (size_t row = 0; row < x.size(); row += kWidth) {
    double square = 0;
    for (size_t i = row; i < row + kWidth; ++i) square += static_cast<double>(x[i]) * x[i];
    for (size_t i = row; i < row + kWidth; ++i) y[i] = static_cast<float>(x[i] / std::sqrt(square / kWidth + 1e-6));
  }
  return y;
}

std::vector<float> some_input() {
  std::vector<float> x(kTokens * kWidth);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.3f * static_cast<float>(i) - 1.0f;
  return x;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << i;
}

TEST(ResidualBlock, LayersOfAHalfReadTheSameNormAndHalvesFollowEachOther) {
  ResidualBlock block(kWidth);
  block.begin_half(RmsNorm(kWidth, 1e-6));
  block.add("a", std::make_unique<Affine>(Affine{2.0f, 0.5f}), {}, "first");
  block.add("b", std::make_unique<Affine>(Affine{-1.0f, 0.25f}), {3.0, 0.5}, "second");
  block.begin_half(RmsNorm(kWidth, 1e-6));
  block.add("c", std::make_unique<Affine>(Affine{0.75f, 0.0f}), {1.0, 2.0}, "third");

  std::vector<float> expected = some_input(), n = normed(expected);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += 2.0f * n[i] + 0.5f + 0.5f * (-1.0f * 3.0f * n[i] + 0.25f);
  n = normed(expected);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += 2.0f * 0.75f * n[i];
  expect_near(run(block, some_input()), expected);

  std::vector<LayerInfo> layers;
  block.describe(layers);
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[1].name, "second");
  EXPECT_EQ(layers[2].kind, "c");
  EXPECT_EQ(layers[0].cache, nullptr);
}

TEST(ResidualBlock, ALayerBeforeAnyNormIsRefused) {
  ResidualBlock block(kWidth);
  EXPECT_THROW(block.add("a", std::make_unique<Affine>(Affine{1.0f, 0.0f})), Error);
}

}  // namespace
}  // namespace coluber
