// SPDX-License-Identifier: Apache-2.0
// What families may ask of Attention beside its plain form, against the formulas in double: gates, norms, multipliers,
// windows, one weight for all projections, another output width.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "layers/attention.h"
#include "layers/memory_weights_test.h"

namespace coluber {
namespace {

constexpr int64_t kTokens = 9, kIn = 20, kOut = 14, kHeads = 4, kKvHeads = 2, kDim = 6, kBlock = 4;
constexpr int64_t kQ = kHeads * kDim, kKv = kKvHeads * kDim;

using Matrix = std::vector<double>;  // [rows, cols]

std::vector<float> numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> uniform(-0.6f, 0.6f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(generator);
  return values;
}

// x [T, in] times w [out, in], with a bias or none.
Matrix product(const Matrix& x, int64_t in, const std::vector<float>& w, const std::vector<float>& bias) {
  const int64_t out = static_cast<int64_t>(w.size()) / in, rows = static_cast<int64_t>(x.size()) / in;
  Matrix y;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<size_t>(o)]);
      for (int64_t i = 0; i < in; ++i) sum += x[static_cast<size_t>(t * in + i)] * w[static_cast<size_t>(o * in + i)];
      y.push_back(sum);
    }
  }
  return y;
}

void norm_rows(Matrix& x, int64_t size, const std::vector<float>& weight, double offset) {
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(size)) {
    double square = 1e-5 * static_cast<double>(size);
    for (size_t d = 0; d < static_cast<size_t>(size); ++d) square += x[row + d] * x[row + d];
    for (size_t d = 0; d < static_cast<size_t>(size); ++d)
      x[row + d] *= (weight.empty() ? 1.0 : weight[d] + offset) / std::sqrt(square / static_cast<double>(size));
  }
}

Matrix attend(const Matrix& q, const Matrix& k, const Matrix& v, double scale, int64_t window) {
  Matrix out(q.size(), 0.0);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t g = h / (kHeads / kKvHeads);
      std::vector<double> weights;
      double sum = 0;
      for (int64_t j = 0; j <= t; ++j) {
        double score = 0;
        for (int64_t d = 0; d < kDim; ++d)
          score += q[static_cast<size_t>(t * kQ + h * kDim + d)] * k[static_cast<size_t>(j * kKv + g * kDim + d)];
        weights.push_back(window > 0 && j <= t - window ? 0.0 : std::exp(scale * score));
        sum += weights.back();
      }
      for (int64_t j = 0; j <= t; ++j) {
        for (int64_t d = 0; d < kDim; ++d)
          out[static_cast<size_t>(t * kQ + h * kDim + d)] +=
              weights[static_cast<size_t>(j)] / sum * v[static_cast<size_t>(j * kKv + g * kDim + d)];
      }
    }
  }
  return out;
}

struct Options {
  bool fused = false, bias = false, norm = false, whole = false, norm_weight = true;
  OutputGate gate = OutputGate::kNone;
  double key_multiplier = 1;
  std::optional<double> scale = std::nullopt;
  int64_t window = 0;
};

// Weights by name, and what the formulas make of them.
struct Weights {
  MemoryWeights source;
  std::map<std::string, std::vector<float>> values;

  std::vector<float>& add(const std::string& name, const Shape& shape) {
    std::vector<float>& value = values[name];
    value = numbers(shape.count(), values.size());
    source.add(name, shape, value);
    return value;
  }

  explicit Weights(const Options& o) {
    const int64_t q_rows = o.gate == OutputGate::kInQuery ? 2 * kQ : kQ;
    if (o.fused) {
      add("qkv.weight", Shape{kQ + 2 * kKv, kIn});
      if (o.bias) add("qkv.bias", Shape{kQ + 2 * kKv});
    } else {
      for (const auto& [name, rows] : {std::pair{"q_proj", q_rows}, {"k_proj", kKv}, {"v_proj", kKv}}) {
        add(std::string(name) + ".weight", Shape{rows, kIn});
        if (o.bias) add(std::string(name) + ".bias", Shape{rows});
      }
    }
    if (o.gate == OutputGate::kProjection) {
      add("g_proj.weight", Shape{kQ, kIn});
      if (o.bias) add("g_proj.bias", Shape{kQ});
    }
    if (o.norm && o.norm_weight) {
      add("q_norm.weight", Shape{o.whole ? kQ : kDim});
      add("k_norm.weight", Shape{o.whole ? kKv : kDim});
    }
    add("o_proj.weight", Shape{kOut, kQ});
  }

  std::vector<float> part(const std::string& name, int64_t first, int64_t count, int64_t cols) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    const auto begin = found->second.begin() + first * cols;
    return {begin, begin + count * cols};
  }
  Matrix project(const Matrix& x, const char* name, int64_t first, int64_t count) const {
    return product(x, kIn, part(std::string(name) + ".weight", first, count, kIn),
                   part(std::string(name) + ".bias", first, count, 1));
  }

  Matrix expected(const Options& o, const Matrix& x) const {
    Matrix q, gate;
    if (o.gate == OutputGate::kInQuery) {
      const Matrix both = project(x, "q_proj", 0, 2 * kQ);
      for (size_t head = 0; head < static_cast<size_t>(kTokens * kHeads); ++head) {
        const auto begin = both.begin() + static_cast<int64_t>(head) * 2 * kDim;
        q.insert(q.end(), begin, begin + kDim);
        gate.insert(gate.end(), begin + kDim, begin + 2 * kDim);
      }
    } else {
      q = project(x, o.fused ? "qkv" : "q_proj", 0, kQ);
    }
    if (o.gate == OutputGate::kProjection) gate = project(x, "g_proj", 0, kQ);
    Matrix k = o.fused ? project(x, "qkv", kQ, kKv) : project(x, "k_proj", 0, kKv);
    const Matrix v = o.fused ? project(x, "qkv", kQ + kKv, kKv) : project(x, "v_proj", 0, kKv);
    for (double& value : k) value *= o.key_multiplier;
    if (o.norm) {
      const std::vector<float> none;
      norm_rows(q, o.whole ? kQ : kDim, o.norm_weight ? values.at("q_norm.weight") : none, 1.0);
      norm_rows(k, o.whole ? kKv : kDim, o.norm_weight ? values.at("k_norm.weight") : none, 1.0);
    }
    Matrix out = attend(q, k, v, o.scale.value_or(1.0 / std::sqrt(static_cast<double>(kDim))), o.window);
    for (size_t i = 0; i < gate.size(); ++i) out[i] /= 1.0 + std::exp(-gate[i]);
    return product(out, kQ, values.at("o_proj.weight"), {});
  }
};

std::vector<float> run(const Options& o, const Weights& weights, const std::vector<float>& x) {
  LoadHarness harness(weights.source);
  harness.config().cache.block_size = kBlock;
  AttentionConfig config;
  config.hidden_size = kIn;
  config.output_size = kOut;
  config.num_heads = kHeads;
  config.num_kv_heads = kKvHeads;
  config.head_dim = kDim;
  if (o.fused) config.qkv_proj = "qkv";
  config.qkv_bias = o.bias;
  if (o.norm) config.qk_norm_eps = 1e-5;
  config.qk_norm_whole = o.whole;
  config.qk_norm_weight = o.norm_weight;
  config.qk_norm_weight_offset = 1;
  config.gate = o.gate;
  config.key_multiplier = o.key_multiplier;
  config.scale = o.scale;
  config.sliding_window = o.window;
  WeightLoader loader(harness.context());
  Attention attention(config, loader);
  ModelInfo info;
  loader.finish(info);
  EXPECT_TRUE(info.notes.empty()) << "a tensor was not used";
  const int64_t page = std::get<FullAttentionSpec>(attention.get_kv_cache_spec(harness.config())).page_size_bytes();
  std::vector<std::byte> memory(static_cast<size_t>(4 * page), std::byte{0xff});
  attention.bind_kv_cache(TensorView::contiguous(memory.data(), DType::kUInt8, Shape{4, 1, 1, page}));
  const std::vector<int32_t> pages = {3, 1, 2}, starts = {0, kTokens}, lengths = {kTokens}, ids(kTokens);
  std::vector<int64_t> positions(kTokens), slots;
  std::iota(positions.begin(), positions.end(), 0);
  for (int64_t p : positions) slots.push_back(pages[static_cast<size_t>(p / kBlock)] * kBlock + p % kBlock);
  FullAttentionMetadata metadata;
  metadata.num_reqs = 1;
  metadata.num_actual_tokens = kTokens;
  metadata.query_start_loc = starts;
  metadata.seq_lens = lengths;
  metadata.block_table = {pages.data(), 1, 3, 3};
  metadata.slot_mapping = slots;
  const AttentionMetadata* of_layer[] = {&metadata};
  ForwardBatch batch = harness.batch(ids);
  batch.positions = positions;
  batch.layer_metadata = of_layer;
  std::vector<float> y(static_cast<size_t>(kTokens * kOut), 1.0f);
  attention.forward(batch, x.data(), y.data(), /*accumulate=*/true);
  for (float& value : y) value -= 1.0f;
  return y;
}

TEST(AttentionOptions, EachGivesItsFormula) {
  const Options cases[] = {
      {},
      {.bias = true},
      {.fused = true, .bias = true},
      {.norm = true},
      {.bias = true, .norm = true, .whole = true},
      {.fused = true, .norm = true, .norm_weight = false},
      {.bias = true, .gate = OutputGate::kInQuery},
      {.norm = true, .gate = OutputGate::kInQuery},
      {.norm = true, .whole = true, .gate = OutputGate::kInQuery},
      {.fused = true, .bias = true, .gate = OutputGate::kProjection},
      {.key_multiplier = -0.7},
      {.scale = 1.3, .window = 3},
  };
  const std::vector<float> x = numbers(kTokens * kIn, 77);
  for (const Options& options : cases) {
    SCOPED_TRACE("case " + std::to_string(&options - cases));
    const Weights weights(options);
    const Matrix want = weights.expected(options, Matrix(x.begin(), x.end()));
    const std::vector<float> got = run(options, weights, x);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << i;
  }
}

}  // namespace
}  // namespace coluber
