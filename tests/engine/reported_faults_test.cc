// SPDX-License-Identifier: Apache-2.0
// Faults that users reported of other engines, as far as no other test meets them: docs/faults.md has the whole list.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "coluber/mamba_base.h"
#include "model_copy.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::prompt_of;

std::vector<int32_t> answer(const EngineOptions& options) {
  const auto engine = Engine::load(options);
  const auto session = engine->open_session();
  session->extend(prompt_of(30), 7);
  for (const float logit : session->last_logits()) EXPECT_TRUE(std::isfinite(logit));
  return ids_of(session->generate(greedy(12)));
}

// The hybrid's name over layers of attention alone.
void keep_attention_alone(ModelCopy& copy, const char* positions) {
  const int64_t layer = copy.layers_of_kind("full_attention").as_array().at(0).as_int();
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  std::map<std::string, StoredTensor> kept;
  for (const auto& [name, tensor] : copy.tensors()) {
    const bool of_layer = name.starts_with("model.layers.");
    if (of_layer && !name.starts_with(prefix)) continue;
    kept.emplace(of_layer ? "model.layers.0." + name.substr(prefix.size()) : name, tensor);
  }
  copy.tensors() = std::move(kept);
  copy.config().set("num_hidden_layers", 1);
  copy.config().set("layer_types", Json::Array{"attention"});
  copy.config().set("position_embedding_type", positions);
}

TEST(AttentionAlone, UnderAHybridsNameRunsWithTheOptionsOfRecurrentCaches) {
  ModelCopy copy("granitemoehybrid_bf16");
  keep_attention_alone(copy, "rope");
  copy.write_all();
  EngineOptions options = copy.options();
  const std::vector<int32_t> plain = answer(options);
  options.mamba_cache_dtype = options.mamba_ssm_cache_dtype = DType::kBFloat16;
  EXPECT_EQ(answer(options), plain);
}

TEST(AttentionAlone, PositionsAreThoseOfTheConfig) {
  std::vector<std::vector<float>> logits;
  for (const char* positions : {"rope", "nope"}) {
    ModelCopy copy("granitemoehybrid_bf16");
    keep_attention_alone(copy, positions);
    copy.write_all();
    const auto engine = Engine::load(copy.options());
    const auto session = engine->open_session();
    logits.push_back(families::logits_of(*session, prompt_of(20)));
    for (const float logit : logits.back()) ASSERT_TRUE(std::isfinite(logit));
  }
  EXPECT_NE(logits[0], logits[1]);
}

TEST(States, AreFloat32WhereNobodySaysOtherwise) {
  for (const std::string& family : families::names()) {
    const auto engine = Engine::load(families::options_for(family));
    for (const AttentionLayerBase* layer : engine->config().layers) {
      const auto* mixer = dynamic_cast<const MambaBase*>(layer);
      if (mixer == nullptr) continue;
      for (const DType dtype : mixer->get_state_dtype())
        EXPECT_TRUE(dtype == DType::kFloat32 || dtype == DType::kInt32) << family << ": " << layer->layer_name();
    }
  }
}

TEST(HalfPrecision, WeightsWithStepsOfAnyLengthGiveNumbers) {
  ModelCopy copy("falcon_h1_bf16");
  copy.convert_all(DType::kFloat32);
  int changed = 0;
  for (auto& [name, tensor] : copy.tensors()) {
    if (!name.ends_with("dt_bias")) continue;
    ++changed;
    auto* values = reinterpret_cast<float*>(tensor.bytes.data());
    for (int64_t i = 0; i < tensor.shape.count(); ++i) values[i] = i % 2 == 0 ? 60.0f : -60.0f;
  }
  ASSERT_GT(changed, 0);
  copy.convert_all(DType::kFloat16);
  copy.write_all();
  answer(copy.options());
}

TEST(Caches, TypesOfStatesAndOfAttentionPagesHaveNothingToDoWithEachOther) {
  for (const std::string family : {"qwen3_next_bf16", "jamba_bf16"}) {
    EngineOptions options = families::options_for(family);
    const std::vector<int32_t> plain = answer(options);
    for (const DType pages : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kFloat8E4M3}) {
      for (const DType states : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt16, DType::kInt8}) {
        options.kv_cache_dtype = pages;
        options.mamba_ssm_cache_dtype = states;
        const std::vector<int32_t> got = answer(options);
        if (pages == DType::kFloat32 && states == DType::kFloat32) {
          EXPECT_EQ(got, plain) << family;
        }
      }
    }
    options.kv_cache_dtype = DType::kInt16;
    try {
      Engine::load(options);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("bfloat16"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace coluber
