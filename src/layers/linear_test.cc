// SPDX-License-Identifier: Apache-2.0
//
// The layers that every model shares: linear, norm, embedding and head.
#include "layers/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "layers/embedding.h"
#include "layers/lm_head.h"
#include "layers/memory_weights_test.h"
#include "layers/norm.h"

namespace coluber {
namespace {

std::vector<float> numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_int_distribution<int> uniform(-8, 8);  // exact in every type, as are their sums of products
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(uniform(generator)) / 8;
  return values;
}

// y [rows, out] (+)= x w^T + b
std::vector<float> product(const std::vector<float>& x, const std::vector<float>& w, const std::vector<float>& b,
                           int64_t rows, int64_t in, int64_t out) {
  std::vector<float> y(static_cast<size_t>(rows * out));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < out; ++n) {
      double sum = b.empty() ? 0.0 : static_cast<double>(b[n]);
      for (int64_t k = 0; k < in; ++k) sum += static_cast<double>(x[r * in + k]) * w[n * in + k];
      y[r * out + n] = static_cast<float>(sum);
    }
  }
  return y;
}

class Layers : public ::testing::Test {
 protected:
  MemoryWeights weights_;
  LoadHarness harness_{weights_};
};

TEST_F(Layers, RowsThatLieHeadByHeadAreGatheredPartByPart) {
  constexpr int64_t kIn = 20, kHeads = 3, kWide = 7;  // a head: 2 rows of one part, 4 of another, 1 of nobody's
  const std::vector<float> w = numbers(kHeads * kWide * kIn, 1), x = numbers(2 * kIn, 2);
  std::vector<float> parts;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 2}, {2, 4}})
    for (int64_t h = 0; h < kHeads; ++h)
      parts.insert(parts.end(), w.begin() + (h * kWide + first) * kIn, w.begin() + (h * kWide + first + count) * kIn);
  weights_.add("f32", Shape{kHeads * kWide, kIn}, w);
  weights_.add("bf16", Shape{kHeads * kWide, kIn}, w, DType::kBFloat16);
  WeightLoader loader(harness_.context());
  const std::vector<int32_t> ids(2);
  for (const char* name : {"f32", "bf16"}) {
    const TensorView weight = loader.take(name, Shape{kHeads * kWide, kIn});
    const Linear linear = gather_rows(loader, weight, {{0, 2, kWide}, {2, 4, kWide}}, kHeads);
    ASSERT_EQ(linear.out_features(), 18);
    std::vector<float> y(2 * 18);
    linear.forward(harness_.batch(ids), x.data(), 2, y.data());
    EXPECT_EQ(y, product(x, parts, {}, 2, kIn, 18)) << name;
  }
}

TEST_F(Layers, LinearMultipliesRowsOfAWiderWeightOfEveryFloatingType) {
  constexpr int64_t kIn = 37, kStored = 50, kFirst = 1, kOut = 24, kRows = 3;
  const std::vector<float> w = numbers(kIn * kStored, 1), b = numbers(kOut, 2), x = numbers(kRows * kIn, 3);
  std::vector<float> odd;
  for (int64_t n = 0; n < kOut; ++n)
    odd.insert(odd.end(), w.begin() + (kFirst + 2 * n) * kIn, w.begin() + (kFirst + 2 * n + 1) * kIn);
  weights_.add_raw("f64", Shape{2, kStored / 2, kIn}, DType::kFloat64, kIn * kStored * 8);
  double* values = weights_.get("f64").as<double>();
  for (size_t i = 0; i < w.size(); ++i) values[i] = w[i];
  weights_.add("f32", Shape{2, kStored / 2, kIn}, w);
  weights_.add("bf16", Shape{2, kStored / 2, kIn}, w, DType::kBFloat16);
  WeightLoader loader(harness_.context());
  const std::vector<int32_t> ids(kRows);
  for (const char* name : {"f64", "f32", "bf16"}) {
    const TensorView stacked = loader.take(name, Shape{2, kStored / 2, kIn});
    const Linear linear(loader, weight_rows(stacked, kFirst, kOut, 2), b);
    EXPECT_EQ(linear.out_features(), kOut);
    std::vector<float> y(kRows * kOut);
    linear.forward(harness_.batch(ids), x.data(), kRows, y.data());
    EXPECT_EQ(y, product(x, odd, b, kRows, kIn, kOut)) << name;
    EXPECT_THROW(weight_rows(stacked, kFirst, kStored / 2 + 1, 2), Error);
  }
}

TEST_F(Layers, LinearMultipliesWeightsOfEveryFloatingType) {
  constexpr int64_t kIn = 37, kOut = 70, kRows = 9;
  const std::vector<float> w = numbers(kIn * kOut, 1), b = numbers(kOut, 2), x = numbers(kRows * kIn, 3);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kFloat8E5M2}) {
    MemoryWeights weights;
    std::vector<float> stored = w;
    if (dtype == DType::kFloat8E5M2) {
      for (float& value : stored) value = value > 0 ? 0.5f : -1.0f;
    }
    if (dtype == DType::kFloat64) {
      weights.add_raw("proj.weight", Shape{kOut, kIn}, dtype, kOut * kIn * 8);
      double* values = weights.get("proj.weight").as<double>();
      for (size_t i = 0; i < stored.size(); ++i) values[i] = stored[i];
    } else {
      weights.add("proj.weight", Shape{kOut, kIn}, stored, dtype);
    }
    weights.add("proj.bias", Shape{kOut}, b);
    LoadHarness harness(weights);
    WeightLoader loader(harness.context());
    const Linear linear(loader, "proj", kIn, kOut, true);
    ModelInfo info;
    loader.finish(info);
    EXPECT_EQ(info.matmul_parameters, kIn * kOut);
    std::vector<float> y(kRows * kOut, -1.0f);
    linear.forward(harness.batch({}), x.data(), kRows, y.data());
    EXPECT_EQ(y, product(x, stored, b, kRows, kIn, kOut)) << dtype_name(dtype);
  }
}

TEST_F(Layers, LinearAddsToTheResidualAndReadsSlices) {
  constexpr int64_t kIn = 16, kOut = 5, kRows = 3, kWide = 40;
  const std::vector<float> w = numbers(kIn * kOut, 1), wide = numbers(kRows * kWide, 2);
  weights_.add("weight", Shape{kOut, kIn}, w);
  const Linear linear(WeightLoader(harness_.context()), "", kIn, kOut, false);
  std::vector<float> x;
  for (int64_t r = 0; r < kRows; ++r)
    x.insert(x.end(), wide.begin() + r * kWide + 7, wide.begin() + r * kWide + 7 + kIn);
  std::vector<float> y(kRows * kOut, 2.0f), want = product(x, w, {}, kRows, kIn, kOut);
  for (float& value : want) value += 2.0f;
  linear.forward(harness_.batch({}), wide.data() + 7, kWide, kRows, y.data(), kOut, true);
  EXPECT_EQ(y, want);
}

TEST_F(Layers, RmsNormScalesByItsWeight) {
  weights_.add("norm.weight", Shape{4}, {0, 1, 2, 3});
  const RmsNorm norm(WeightLoader(harness_.context()), "norm", 4, 0.0, 1.0f);
  const std::vector<float> x = {1, -1, 1, -1};
  std::vector<float> y(4);
  norm.forward(harness_.batch({}), x.data(), 1, y.data());
  EXPECT_EQ(y, (std::vector<float>{1, -2, 3, -4}));
}

TEST_F(Layers, EmbeddingAndTiedHeadShareOneMatrix) {
  constexpr int64_t kVocab = 67, kHidden = 12;
  const std::vector<float> table = numbers(kVocab * kHidden, 1);
  weights_.add("embed.weight", Shape{kVocab, kHidden}, table, DType::kBFloat16);
  weights_.add("lm_head.weight", Shape{kVocab, kHidden}, numbers(kVocab * kHidden, 9),
               DType::kBFloat16);  // a stale copy
  WeightLoader loader(harness_.context());
  Embedding embedding(loader, "embed", kVocab, kHidden);
  const std::vector<int32_t> ids = {66, 0, 5};
  ForwardBatch batch = harness_.batch(ids);
  std::vector<float> before(3 * kHidden), x(3 * kHidden);
  embedding.forward(batch, before.data());
  const LmHead head(loader, "lm_head", embedding, true);
  embedding.forward(batch, x.data());  // now from the packed matrix
  EXPECT_EQ(x, before);
  for (size_t t = 0; t < 3; ++t) {
    for (int64_t c = 0; c < kHidden; ++c) EXPECT_EQ(x[t * kHidden + c], table[ids[t] * kHidden + c]);
  }
  const std::vector<int32_t> rows = {0, 2};
  std::vector<float> logits(2 * kVocab), wanted(x.begin(), x.begin() + kHidden);
  wanted.insert(wanted.end(), x.begin() + 2 * kHidden, x.end());
  batch.logits_rows = rows;
  batch.logits = logits.data();
  head.forward(batch, x.data());
  EXPECT_EQ(logits, product(wanted, table, {}, 2, kHidden, kVocab));
  ModelInfo info;
  loader.finish(info);
  EXPECT_EQ(info.parameters, kVocab * kHidden);
  EXPECT_EQ(info.matmul_parameters, kVocab * kHidden);
  EXPECT_EQ(info.streamed_bytes, (kVocab + 1) * kHidden * 2);
  ASSERT_EQ(info.notes.size(), 1u);
  EXPECT_NE(info.notes[0].find("tied"), std::string::npos);
}

TEST_F(Layers, AHeadOfItsOwnTakesItsWeight) {
  constexpr int64_t kVocab = 10, kHidden = 6;
  const std::vector<float> w = numbers(kVocab * kHidden, 2), x = numbers(2 * kHidden, 3);
  weights_.add("embed.weight", Shape{kVocab, kHidden}, numbers(kVocab * kHidden, 1));
  weights_.add("lm_head.weight", Shape{kVocab, kHidden}, w);
  WeightLoader loader(harness_.context());
  Embedding embedding(loader, "embed", kVocab, kHidden);
  const LmHead head(loader, "lm_head", embedding, false);
  const std::vector<int32_t> ids = {1, 2}, rows = {0, 1};
  std::vector<float> logits(2 * kVocab);
  ForwardBatch batch = harness_.batch(ids);
  batch.logits_rows = rows;
  batch.logits = logits.data();
  head.forward(batch, x.data());
  EXPECT_EQ(logits, product(x, w, {}, 2, kHidden, kVocab));
}

TEST_F(Layers, AHeadMayHaveABiasAndFewerRowsThanTheTable) {
  constexpr int64_t kVocab = 10, kHidden = 6;
  const std::vector<float> w = numbers(kVocab * kHidden, 3), x = numbers(2 * kHidden, 4), b = numbers(kVocab - 2, 6);
  weights_.add("embed.weight", Shape{kVocab, kHidden}, numbers(kVocab * kHidden, 5));
  weights_.add("lm_head.weight", Shape{kVocab, kHidden}, w);
  weights_.add("lm_head.bias", Shape{kVocab - 2}, b);
  WeightLoader loader(harness_.context());
  Embedding embedding(loader, "embed", kVocab, kHidden);
  const LmHead head(loader, "lm_head", embedding, false, {.bias = true, .logits_size = kVocab - 2});
  EXPECT_EQ(head.logits_size(), kVocab - 2);
  const std::vector<int32_t> ids = {1, 2}, rows = {1};
  std::vector<float> logits(kVocab - 2);
  ForwardBatch batch = harness_.batch(ids);
  batch.logits_rows = rows;
  batch.logits = logits.data();
  head.forward(batch, x.data());
  const std::vector<float> second(x.begin() + kHidden, x.end()), first(w.begin(), w.end() - 2 * kHidden);
  EXPECT_EQ(logits, product(second, first, b, 1, kHidden, kVocab - 2));
}

TEST_F(Layers, ATableOfItsOwnDoesNotNeedTheCheckpointOnceLoaded) {
  const std::vector<float> table = numbers(8 * 4, 5);
  weights_.add("embed.weight", Shape{8, 4}, table, DType::kBFloat16);
  WeightLoader loader(harness_.context());
  const Embedding embedding(loader, "embed", 8, 4);
  const TensorView stored = weights_.get("embed.weight");
  std::fill_n(stored.data, stored.size_bytes(), std::byte{0xff});
  const std::vector<int32_t> ids = {7, 0};
  std::vector<float> x(2 * 4);
  embedding.forward(harness_.batch(ids), x.data());
  for (size_t c = 0; c < 4; ++c) {
    EXPECT_EQ(x[c], table[7 * 4 + c]);
    EXPECT_EQ(x[4 + c], table[c]);
  }
}

TEST_F(Layers, ATokenOutsideTheVocabularyIsABrokenInvariant) {
  weights_.add("weight", Shape{4, 2}, numbers(8, 1));
  const Embedding embedding(WeightLoader(harness_.context()), "", 4, 2);
  for (int32_t bad : {-1, 4}) {
    const std::vector<int32_t> ids = {0, bad};
    std::vector<float> x(4);
    EXPECT_THROW(embedding.forward(harness_.batch(ids), x.data()), Error);
  }
}

TEST_F(Layers, DescribingCountsWithoutPacking) {
  weights_.add("embed.weight", Shape{8, 4}, numbers(32, 1));
  weights_.add("proj.weight", Shape{6, 4}, numbers(24, 1));
  harness_.context().describe_only = true;
  WeightLoader loader(harness_.context());
  Embedding embedding(loader, "embed", 8, 4);
  const LmHead head(loader, "lm_head", embedding, true);
  const Linear linear(loader, "proj", 4, 6, false);
  ModelInfo info;
  loader.finish(info);
  EXPECT_EQ(info.matmul_parameters, 32 + 24);
  EXPECT_EQ(info.parameters, 32 + 24);
}

TEST_F(Layers, MissingWeightsAreReportedTogether) {
  WeightLoader loader(harness_.context());
  Embedding embedding(loader, "embed", 8, 4);
  const Linear linear(loader, "proj", 4, 6, true);
  const RmsNorm norm(loader, "norm", 4, 1e-5);
  const LmHead head(loader, "lm_head", embedding, false);
  ModelInfo info;
  try {
    loader.finish(info);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    for (const char* name : {"embed.weight", "proj.weight", "proj.bias", "norm.weight", "lm_head.weight"}) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << name;
    }
  }
}

}  // namespace
}  // namespace coluber
