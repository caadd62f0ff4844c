// SPDX-License-Identifier: Apache-2.0
// Attention, the gated MLP and the experts against the values of two published architectures: one whole block of a
// golden checkpoint each, from the block's input to its output, and the cached keys and values.
#include "layers/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "formats/weight_source.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/norm.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

constexpr int64_t kTokens = 17, kHidden = 48, kBlockSize = 4;

std::string folder_of(const std::string& name) { return std::string(COLUBER_SOURCE_DIR) + "/tests/data/" + name; }

std::vector<float> copy_of(const TensorView& view) { return {view.as<float>(), view.as<float>() + view.shape.count()}; }

// A checkpoint, its expected values and what a step needs.
struct Golden {
  FileWeights weights, expected;
  std::string config_json = "{}";
  EngineConfig config;
  ThreadPool pool{2};
  ModelLoadContext context{config_json, "config.json", weights, config, pool, {}};
  WeightLoader loader{context};
  Workspace workspace;
  std::vector<std::byte> memory;

  explicit Golden(const std::string& name)
      : weights(folder_of(name) + "/model.safetensors"), expected(folder_of(name) + "/golden.safetensors") {
    config.cache.block_size = kBlockSize;
  }

  // Pages of NaN, with a gap between them.
  void bind(Attention& layer, int64_t num_pages) {
    const int64_t bytes = std::get<FullAttentionSpec>(layer.get_kv_cache_spec(config)).page_size_bytes();
    memory.assign(static_cast<size_t>(num_pages * (bytes + 64)), std::byte{0xff});
    TensorView page = TensorView::contiguous(memory.data(), DType::kUInt8, Shape{num_pages, 1, 1, bytes});
    page.strides = Shape{bytes + 64, bytes, bytes, 1};
    layer.bind_kv_cache(page);
  }
};

// Feeds x [17, H] in chunks to one layer, with a sequence whose pages lie in descending order.
class Feeder {
 public:
  explicit Feeder(Golden& golden) : golden_(golden) {
    for (int32_t id = (kTokens + kBlockSize - 1) / kBlockSize; id > 0; --id) pages_.push_back(id);
  }
  const std::vector<int32_t>& pages() const { return pages_; }
  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()) + 1; }

  template <typename Run>  // run(batch, first row)
  void feed(int64_t chunk, Run&& run) {
    for (int64_t begin = 0; begin < kTokens; begin += chunk) {
      const int64_t end = std::min(begin + chunk, kTokens);
      std::vector<int32_t> ids(static_cast<size_t>(end - begin)), starts = {0, static_cast<int32_t>(end - begin)};
      std::vector<int32_t> lengths = {static_cast<int32_t>(end)};
      std::vector<int64_t> positions(ids.size()), slots;
      std::iota(positions.begin(), positions.end(), begin);
      for (int64_t p : positions) {
        slots.push_back(pages_[static_cast<size_t>(p / kBlockSize)] * kBlockSize + p % kBlockSize);
      }
      FullAttentionMetadata metadata;
      metadata.num_reqs = 1;
      metadata.num_actual_tokens = end - begin;
      metadata.query_start_loc = starts;
      metadata.seq_lens = lengths;
      metadata.block_table = {pages_.data(), 1, num_pages() - 1, num_pages() - 1};
      metadata.slot_mapping = slots;
      const AttentionMetadata* of_layer[] = {&metadata};
      ForwardBatch batch;
      batch.token_ids = ids;
      batch.positions = positions;
      batch.query_start_loc = starts;
      batch.seq_lens = lengths;
      batch.layer_metadata = of_layer;
      batch.thread_pool = &golden_.pool;
      batch.workspace = &golden_.workspace;
      run(batch, begin);
    }
  }

 private:
  Golden& golden_;
  std::vector<int32_t> pages_;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double square = 0, worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    square += static_cast<double>(want[i]) * want[i];
    worst = std::max(worst, std::isfinite(got[i]) ? std::fabs(static_cast<double>(got[i]) - want[i]) : INFINITY);
  }
  EXPECT_LE(worst, tolerance * std::sqrt(square / static_cast<double>(want.size()))) << what;
}

AttentionConfig attention_config(int64_t head_dim) {
  AttentionConfig config;
  config.hidden_size = kHidden;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = head_dim;
  config.rope = RopeConfig{.theta = 1e6};
  return config;
}

AttentionConfig lfm2_attention() {
  AttentionConfig config = attention_config(12);
  config.qk_norm_eps = 1e-5;
  config.out_proj = "out_proj";
  config.q_norm = "q_layernorm";
  config.k_norm = "k_layernorm";
  return config;
}

void expect_cache(const Attention& layer, const Golden& golden, const Feeder& feeder, double tolerance) {
  const ExportedKeyValues exported = layer.export_key_values(feeder.pages(), kTokens);
  expect_near(exported.keys, copy_of(golden.expected.get("state.2.key")), tolerance, "keys");
  expect_near(exported.values, copy_of(golden.expected.get("state.2.value")), tolerance, "values");
}

TEST(Attention, ABlockOfLfm2MatchesItsGoldenValuesInAnyChunks) {
  Golden golden("lfm2");
  WeightLoader block = golden.loader.scoped("model.layers.2"), attn = block.scoped("self_attn"),
               mlp = block.scoped("feed_forward");
  Attention attention(lfm2_attention(), attn);
  EXPECT_EQ(attention.layer_name(), "model.layers.2.self_attn");
  Mlp feed_forward({.hidden_size = kHidden, .intermediate_size = 96, .gate = "w1", .up = "w3", .down = "w2"}, mlp);
  RmsNorm operator_norm(block, "operator_norm", kHidden, 1e-5), ffn_norm(block, "ffn_norm", kHidden, 1e-5);
  std::vector<float> first;
  for (int64_t chunk : {17, 5, 1}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    Feeder feeder(golden);
    golden.bind(attention, feeder.num_pages());
    std::vector<float> x = copy_of(golden.expected.get("hidden.2")), normed(x.size());
    feeder.feed(chunk, [&](const ForwardBatch& batch, int64_t begin) {
      float* rows = x.data() + begin * kHidden;
      operator_norm.forward(batch, rows, batch.num_tokens(), normed.data());
      attention.forward(batch, normed.data(), rows, true);
      ffn_norm.forward(batch, rows, batch.num_tokens(), normed.data());
      feed_forward.forward(batch, normed.data(), rows, true);
    });
    expect_near(x, copy_of(golden.expected.get("hidden.3")), 1e-4, "hidden.3");
    expect_cache(attention, golden, feeder, 1e-4);
    if (first.empty()) first = x;
    EXPECT_EQ(x, first) << "chunks change bits";
  }
}

TEST(Attention, ABlockOfMiniMaxMatchesItsGoldenValuesInAnyChunks) {
  Golden golden("minimax");
  WeightLoader block = golden.loader.scoped("model.layers.2"), attn = block.scoped("self_attn"),
               moe = block.scoped("block_sparse_moe");
  Attention attention(attention_config(16), attn);
  MoeBlock experts({.hidden_size = kHidden, .intermediate_size = 28, .num_experts = 4, .top_k = 2}, moe);
  RmsNorm input_norm(block, "input_layernorm", kHidden, 1e-5),
      post_norm(block, "post_attention_layernorm", kHidden, 1e-5);
  std::vector<float> first;
  for (int64_t chunk : {17, 5, 1}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    Feeder feeder(golden);
    golden.bind(attention, feeder.num_pages());
    std::vector<float> x = copy_of(golden.expected.get("hidden.2")), normed(x.size()), y(x.size());
    feeder.feed(chunk, [&](const ForwardBatch& batch, int64_t begin) {
      const int64_t tokens = batch.num_tokens(), count = tokens * kHidden;
      float* rows = x.data() + begin * kHidden;
      auto mix = [&](float alpha, float beta) {
        for (int64_t i = 0; i < count; ++i)
          rows[i] = alpha * normed[static_cast<size_t>(i)] + beta * y[static_cast<size_t>(i)];
      };
      input_norm.forward(batch, rows, tokens, normed.data());
      attention.forward(batch, normed.data(), y.data());
      mix(1.2f, 0.9f);
      post_norm.forward(batch, rows, tokens, normed.data());
      experts.forward(batch, normed.data(), y.data());
      mix(1.1f, 0.7f);
    });
    expect_near(x, copy_of(golden.expected.get("hidden.3")), 1e-4, "hidden.3");
    expect_cache(attention, golden, feeder, 1e-4);
    if (first.empty()) first = x;
    EXPECT_EQ(x, first) << "chunks change bits";
  }
}

TEST(Attention, NarrowPagesStayClose) {
  std::vector<float> keys;  // float32's
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kFloat8E4M3}) {
    Golden golden("lfm2");
    golden.config.cache.kv_cache_dtype = dtype;
    WeightLoader attn = golden.loader.scoped("model.layers.2.self_attn");
    Attention attention(lfm2_attention(), attn);
    Feeder feeder(golden);
    golden.bind(attention, feeder.num_pages());
    const std::vector<float> x = copy_of(golden.expected.get("hidden.2"));
    std::vector<float> y(x.size());
    feeder.feed(kTokens, [&](const ForwardBatch& batch, int64_t) { attention.forward(batch, x.data(), y.data()); });
    const ExportedKeyValues exported = attention.export_key_values(feeder.pages(), kTokens);
    if (keys.empty()) keys = exported.keys;
    const double largest_error = dtype == DType::kFloat8E4M3 ? 0.1 : dtype == DType::kInt8 ? 0.02 : 0.01;
    ASSERT_EQ(exported.keys.size(), keys.size());
    float top = 0.0f;
    for (const float k : keys) top = std::max(top, std::fabs(k));
    for (size_t i = 0; i < keys.size(); ++i) EXPECT_NEAR(exported.keys[i], keys[i], largest_error * top);
    for (float out : y) EXPECT_TRUE(std::isfinite(out));
  }
}

TEST(Attention, ATokenThatIsNoNumberIsSeenByAllBehindItAndByNoneBefore) {
  constexpr int64_t kBad = 6;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kFloat8E4M3}) {
    for (int64_t chunk : {kTokens, int64_t{1}}) {
      Golden golden("lfm2");
      golden.config.cache.kv_cache_dtype = dtype;
      Attention attention(lfm2_attention(), golden.loader.scoped("model.layers.2.self_attn"));
      Feeder feeder(golden);
      golden.bind(attention, feeder.num_pages());
      std::vector<float> x = copy_of(golden.expected.get("hidden.2")), y(x.size());
      x[kBad * kHidden] = NAN;
      feeder.feed(chunk, [&](const ForwardBatch& batch, int64_t begin) {
        attention.forward(batch, x.data() + begin * kHidden, y.data() + begin * kHidden);
      });
      for (int64_t t = 0; t < kTokens; ++t)
        EXPECT_EQ(std::isfinite(y[static_cast<size_t>(t * kHidden)]), t < kBad) << dtype_name(dtype) << ", token " << t;
    }
  }
}

TEST(Attention, SpecFollowsTheConfigurationAndTheRanks) {
  Golden golden("lfm2");
  golden.config.cache.kv_cache_dtype = DType::kBFloat16;
  WeightLoader attn = golden.loader.scoped("model.layers.2.self_attn");
  Attention attention(lfm2_attention(), attn);
  const auto spec = std::get<FullAttentionSpec>(attention.get_kv_cache_spec(golden.config));
  EXPECT_EQ(spec.page_size_bytes(), 2 * kBlockSize * 2 * 12 * 2);
  EXPECT_EQ(golden.config.layers.size(), 1u);
  for (int64_t ranks : {2, 4}) {
    golden.config.parallel.tensor_parallel_size = ranks;
    EXPECT_EQ(std::get<FullAttentionSpec>(attention.get_kv_cache_spec(golden.config)).num_kv_heads, 1);
  }
  golden.config.parallel.tensor_parallel_size = 3;
  EXPECT_THROW(attention.get_kv_cache_spec(golden.config), Error);
}

template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Attention, SizesThatDoNotFitAreRefusedByName) {
  Golden golden("lfm2");
  WeightLoader attn = golden.loader.scoped("model.layers.2.self_attn");
  AttentionConfig wrong = lfm2_attention();
  wrong.num_kv_heads = 3;
  wrong.head_dim = 0;
  const std::string message = message_of([&] { Attention layer(wrong, attn); });
  for (const char* word : {"model.layers.2.self_attn", "head dim", "4 and 3"}) {
    EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
  }
  golden.config.cache.kv_cache_dtype = DType::kInt16;
  EXPECT_NE(message_of([&] { Attention layer(lfm2_attention(), attn); }).find("int16"), std::string::npos);
  golden.config.cache.kv_cache_dtype = DType::kFloat32;
  Attention attention(lfm2_attention(), attn);
  std::vector<std::byte> memory(4096);
  const TensorView small = TensorView::contiguous(memory.data(), DType::kUInt8, Shape{2, 1, 1, 64});
  EXPECT_NE(message_of([&] { attention.bind_kv_cache(small); }).find("768"), std::string::npos);
  WeightLoader moe = golden.loader.scoped("moe");
  EXPECT_NE(message_of([&] {
              MoeBlock block({.hidden_size = 8, .intermediate_size = 8, .num_experts = 2, .top_k = 3}, moe);
            }).find("expected 1 to 2, found 3"),
            std::string::npos);
}

TEST(Moe, CountsTheExpertsThatATokenMeets) {
  Golden golden("minimax");
  WeightLoader moe = golden.loader.scoped("model.layers.2.block_sparse_moe");
  MoeBlock block({.hidden_size = kHidden, .intermediate_size = 28, .num_experts = 4, .top_k = 2}, moe);
  ModelInfo info;
  golden.loader.finish(info);
  EXPECT_EQ(info.matmul_parameters, 4 * kHidden + 2 * 3 * 28 * kHidden);
  EXPECT_EQ(info.streamed_bytes, 4 * info.matmul_parameters);
}

}  // namespace
}  // namespace coluber
