// SPDX-License-Identifier: Apache-2.0
//
// What a config leaves out, and what it may not ask for: MiniMax's kinds of layers and windows, LFM2's size of heads.
#include <gtest/gtest.h>

#include "base/error.h"
#include "model_copy.h"

namespace coluber {
namespace {

using families::logits_of;
using families::prompt_of;

std::vector<float> logits_with(const EngineOptions& options, int64_t chunk = 0) {
  const auto engine = Engine::load(options);
  return logits_of(*engine->open_session(), prompt_of(20), chunk);
}

EngineOptions stored(const std::string& family) {
  EngineOptions options = families::options_for(family);
  options.num_threads = 1;
  return options;
}

// Message of the refusal; empty where the model loads.
std::string refusal_of(ModelCopy& copy) {
  copy.write_all();
  try {
    Engine::load(copy.options());
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

bool says(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

// Puts the attention of layer `from` into layer `to` as well.
void copy_attention(ModelCopy& copy, int from, int to) {
  const auto prefix = [](int layer) { return "model.layers." + std::to_string(layer) + ".self_attn."; };
  std::erase_if(copy.tensors(), [&](const auto& entry) { return entry.first.starts_with(prefix(to)); });
  std::map<std::string, StoredTensor> added;
  for (const auto& [name, tensor] : copy.tensors()) {
    if (name.starts_with(prefix(from))) added[prefix(to) + name.substr(prefix(from).size())] = tensor;
  }
  ASSERT_FALSE(added.empty());
  copy.tensors().insert(added.begin(), added.end());
}

TEST(MiniMaxConfig, LayersAlternateFromSoftmaxAttentionWhereNothingNamesThem) {
  ModelCopy copy("minimax");
  copy_attention(copy, 2, 0);
  copy.config().set("layer_types",
                    Json::Array{"full_attention", "linear_attention", "full_attention", "linear_attention"});
  copy.write_all();
  const std::vector<float> named = logits_with(copy.options());
  for (const bool is_null : {true, false}) {
    copy.remove_key("layer_types");
    if (is_null) copy.config().set("layer_types", nullptr);
    copy.write_config();
    EXPECT_EQ(logits_with(copy.options()), named);
  }
  // The checkpoint as stored begins otherwise: there the default does not fit.
  ModelCopy other("minimax");
  other.remove_key("layer_types");
  const std::string refusal = refusal_of(other);
  EXPECT_TRUE(says(refusal, "model.layers.0.self_attn.q_proj.weight")) << refusal;
  EXPECT_FALSE(says(refusal, "model.layers.1.")) << refusal;
}

TEST(MiniMaxConfig, KindsOfLayersThatThereAreNotAreRefused) {
  ModelCopy copy("minimax");
  copy.config().set("layer_types", Json::Array{"linear_attention", "full_attention"});
  EXPECT_TRUE(says(refusal_of(copy), "layer_types must name num_hidden_layers layers"));
  copy.config().set("layer_types", Json::Array{"linear_attention", "mamba", "full_attention", "linear_attention"});
  EXPECT_TRUE(says(refusal_of(copy), "mamba"));
}

TEST(MiniMaxConfig, AWindowThatHidesPartOfThePastIsRefused) {
  const std::vector<float> plain = logits_with(stored("minimax"));
  ModelCopy copy("minimax");
  for (const int64_t window : {int64_t{1}, int64_t{4096}, int64_t{131071}}) {
    copy.config().set("sliding_window", window);
    EXPECT_TRUE(says(refusal_of(copy), "sliding_window")) << window;
  }
  for (const Json& window : {Json(), Json(131072), Json(1 << 20)}) {
    copy.config().set("sliding_window", window);
    copy.write_all();
    EXPECT_EQ(logits_with(copy.options()), plain) << window.dump();
  }
}

// A tensor of another shape, filled with the values of the old one from the beginning, again and again.
void resize(StoredTensor& tensor, const Shape& shape) {
  std::vector<std::byte> bytes(static_cast<size_t>(dtype_bytes(tensor.dtype, shape.count())));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = tensor.bytes[i % tensor.bytes.size()];
  tensor.shape = shape;
  tensor.bytes = std::move(bytes);
}

TEST(Lfm2Config, HeadsAreOfTheWidthDividedByTheirNumberWhereNothingSaysTheirSize) {
  ModelCopy copy("lfm2");
  for (const Json& size : {Json(12), Json()}) {
    copy.config().set("head_dim", size);
    copy.write_all();
    EXPECT_EQ(logits_with(copy.options()), logits_with(stored("lfm2"))) << size.dump();
  }
  copy.remove_key("head_dim");
  copy.config().set("num_attention_heads", 7);
  copy.config().set("num_key_value_heads", 7);
  EXPECT_TRUE(says(refusal_of(copy), "num_attention_heads must divide hidden_size"));
}

TEST(Lfm2Config, HeadsMayBeOfAnySizeThatTheConfigSays) {
  ModelCopy copy("lfm2");
  copy.config().set("head_dim", 16);
  const std::string refusal = refusal_of(copy);
  for (const char* shape : {"[64, 48]", "[32, 48]", "[48, 64]", "[16]"}) EXPECT_TRUE(says(refusal, shape)) << refusal;
  for (auto& [name, tensor] : copy.tensors()) {
    if (name.ends_with("self_attn.q_proj.weight")) resize(tensor, Shape{64, 48});
    if (name.ends_with("self_attn.k_proj.weight")) resize(tensor, Shape{32, 48});
    if (name.ends_with("self_attn.v_proj.weight")) resize(tensor, Shape{32, 48});
    if (name.ends_with("self_attn.out_proj.weight")) resize(tensor, Shape{48, 64});
    if (name.ends_with("_layernorm.weight")) resize(tensor, Shape{16});
  }
  copy.write_all();
  const std::vector<float> whole = logits_with(copy.options()), parts = logits_with(copy.options(), 3);
  ASSERT_EQ(whole.size(), parts.size());
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(whole[i], parts[i], 1e-3f) << i;
  const auto engine = Engine::load(copy.options());
  for (const AttentionLayerBase* layer : engine->config().layers) {
    const KVCacheSpec spec = layer->get_kv_cache_spec(engine->config());
    const auto* attention = std::get_if<FullAttentionSpec>(&spec);
    EXPECT_TRUE(attention == nullptr || attention->head_size == 16) << layer->layer_name();
  }
}

}  // namespace
}  // namespace coluber
