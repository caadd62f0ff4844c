// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints are published under several spellings. Each family's tiny checkpoint, respelt, gives the very same
// logits.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/error.h"
#include "model_copy.h"

namespace coluber {
namespace {

std::vector<float> logits_with(const EngineOptions& options) {
  const auto engine = Engine::load(options);
  const auto session = engine->open_session();
  return families::logits_of(*session, families::prompt_of(20));
}

std::vector<float> logits_as_stored(const std::string& family) {
  EngineOptions options = families::options_for(family);
  options.num_threads = 1;
  return logits_with(options);
}

class Published : public testing::TestWithParam<std::string> {};

// The change to the copy must leave the logits bit for bit what they are.
void expect_same(const std::string& family, const std::function<void(ModelCopy&)>& respell) {
  ModelCopy copy(family);
  respell(copy);
  copy.write_all();
  EXPECT_EQ(logits_with(copy.options()), logits_as_stored(family)) << copy.config().dump();
}

TEST_P(Published, KeysThatNothingUsesDoNotMatter) {
  expect_same(GetParam(), [](ModelCopy& copy) {
    copy.config().set("auto_map", Json::Object{{"AutoConfig", "x.Y"}});
    copy.config().set("rms_norm", true);
    copy.config().set("fused_add_norm", true);
    copy.config().set("use_pos_enc", true);
    copy.config().set("quantization_config", nullptr);
    copy.config().set("some_new_list", Json::Array{1, "two", nullptr});
  });
}

TEST_P(Published, TheTypeOfTheWeightsMayStandUnderItsOldNameOrNowhere) {
  for (const char* name : {"dtype", "torch_dtype", ""}) {
    expect_same(GetParam(), [&](ModelCopy& copy) {
      copy.remove_key("dtype");
      copy.remove_key("torch_dtype");
      if (*name != '\0') copy.config().set(name, dtype_name(copy.tensors().begin()->second.dtype));
    });
  }
}

TEST_P(Published, TheArchitectureAloneNamesTheFamily) {
  expect_same(GetParam(), [](ModelCopy& copy) { copy.remove_key("model_type"); });
  expect_same(GetParam(), [](ModelCopy& copy) { copy.config().set("model_type", "a_name_of_their_own"); });
}

TEST_P(Published, EndTokensMayBeMissingOneOrAList) {
  try {
    expect_same(GetParam(), [](ModelCopy& copy) { copy.remove_key("eos_token_id"); });
    expect_same(GetParam(), [](ModelCopy& copy) { copy.config().set("eos_token_id", nullptr); });
  } catch (const Error& error) {
    // A model may compute with the token; it then says what it lacks.
    EXPECT_NE(std::string(error.what()).find("eos_token_id"), std::string::npos) << error.what();
  }
  ModelCopy copy(GetParam());
  copy.config().set("eos_token_id", Json::Array{7, 9});
  copy.write_all();
  const auto engine = Engine::load(copy.options());
  EXPECT_EQ(std::vector<int32_t>(engine->eos_token_ids().begin(), engine->eos_token_ids().end()),
            (std::vector<int32_t>{7, 9}));
}

TEST_P(Published, ShardsWithAnIndexAreTheSameModel) {
  ModelCopy copy(GetParam());
  copy.write_config();
  copy.write_shards(3);
  const std::vector<float> expected = logits_as_stored(GetParam());
  EXPECT_EQ(logits_with(copy.options()), expected);
  EngineOptions index = copy.options();
  index.model = copy.at("model.safetensors.index.json");
  EXPECT_EQ(logits_with(index), expected);
}

TEST_P(Published, TheWeightsFileNamesTheModelToo) {
  ModelCopy copy(GetParam());
  copy.write_config();
  copy.write_weights("consolidated.safetensors");
  EngineOptions options = copy.options();
  options.model = copy.at("consolidated.safetensors");
  EXPECT_EQ(logits_with(options), logits_as_stored(GetParam()));
}

// Files of older writers do not pad their header: every tensor then lies at an odd address.
TEST_P(Published, AFileWithMisalignedTensorsIsReadAllTheSame) {
  ModelCopy copy(GetParam());
  copy.write_config();
  copy.write_weights("aligned.safetensors");
  std::string file = read_text_file(copy.at("aligned.safetensors"));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  file.insert(sizeof length + length, "   ");
  length += 3;
  std::memcpy(file.data(), &length, sizeof length);
  copy.write("model.safetensors", file);
  EXPECT_EQ(logits_with(copy.options()), logits_as_stored(GetParam()));
}

TEST_P(Published, HalfPrecisionWeightsAreTheirFloatValues) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    ModelCopy half(GetParam());
    half.convert_all(dtype);
    ModelCopy widened(GetParam());
    widened.convert_all(dtype);
    widened.convert_all(DType::kFloat32);
    half.write_all();
    widened.write_all();
    const std::vector<float> a = logits_with(half.options()), b = logits_with(widened.options());
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-3f) << dtype_name(dtype) << " at " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Published, testing::ValuesIn(families::names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

TEST(PublishedMamba, BothNamesOfTheEmbeddingLoad) {
  for (const char* family : {"mamba", "falcon_mamba"})
    expect_same(family,
                [](ModelCopy& copy) { copy.rename_tensor("backbone.embeddings.weight", "backbone.embedding.weight"); });
  expect_same("mamba2",
              [](ModelCopy& copy) { copy.rename_tensor("backbone.embeddings.weight", "backbone.embedding.weight"); });
}

TEST(PublishedMamba, OldNamesOfSizesLoad) {
  for (const char* family : {"mamba", "falcon_mamba"}) {
    expect_same(family, [](ModelCopy& copy) {
      copy.rename_key("hidden_size", "d_model");
      copy.rename_key("num_hidden_layers", "n_layer");
      copy.rename_key("intermediate_size", "d_inner");
      copy.config().set("ssm_cfg", Json::Object{});
    });
    expect_same(family, [](ModelCopy& copy) {  // as the first conversions have it: both
      copy.config().set("d_model", copy.config().at("hidden_size"));
      copy.config().set("n_layer", copy.config().at("num_hidden_layers"));
    });
  }
}

TEST(PublishedMamba, DefaultsMayBeLeftOut) {
  for (const char* family : {"mamba", "falcon_mamba"}) {
    expect_same(family, [](ModelCopy& copy) { copy.config().set("time_step_rank", "auto"); });
    expect_same(family, [](ModelCopy& copy) {
      for (const char* key : {"time_step_rank", "intermediate_size", "tie_word_embeddings", "layer_norm_epsilon",
                              "expand", "conv_kernel", "state_size", "use_bias", "use_conv_bias", "hidden_act"})
        copy.remove_key(key);
    });
  }
}

TEST(PublishedMamba, AStoredCopyOfATiedHeadIsLeftOut) {
  for (const char* family : {"mamba", "falcon_mamba"})
    expect_same(family, [](ModelCopy& copy) {
      copy.tensors()["lm_head.weight"] = copy.tensors().at("backbone.embeddings.weight");
    });
  expect_same("lfm2", [](ModelCopy& copy) {
    copy.tensors()["lm_head.weight"] = copy.tensors().at("model.embed_tokens.weight");
  });
}

TEST(PublishedMamba, WithoutAWordOnTyingTheHeadIsWhatTheCheckpointHas) {
  for (const char* family : {"mamba2", "minimax"}) {
    expect_same(family, [](ModelCopy& copy) { copy.remove_key("tie_word_embeddings"); });
    ModelCopy silent(family), tied(family);
    silent.remove_key("tie_word_embeddings");
    tied.config().set("tie_word_embeddings", true);
    silent.tensors().erase("lm_head.weight");
    silent.write_all();
    tied.write_all();
    EXPECT_EQ(logits_with(silent.options()), logits_with(tied.options()));
  }
}

TEST(PublishedMamba2, InfinityMayBeSpeltInAnyWayOrLeftOut) {
  const Json tagged = Json::Object{{"__float__", "Infinity"}};
  expect_same("mamba2", [&](ModelCopy& copy) { copy.config().set("time_step_limit", Json::Array{0.0, tagged}); });
  expect_same("mamba2", [](ModelCopy& copy) { copy.config().set("time_step_limit", nullptr); });
  expect_same("mamba2", [](ModelCopy& copy) { copy.remove_key("time_step_limit"); });
  ModelCopy bare("mamba2");
  bare.remove_key("time_step_limit");
  bare.write_all();
  std::string text = bare.config().dump();
  text.insert(text.size() - 1, ", \"time_step_limit\": [0.0, Infinity]");
  bare.write("config.json", text);
  EXPECT_EQ(logits_with(bare.options()), logits_as_stored("mamba2"));
}

TEST(PublishedLfm2, TheFirstConfigsNamesLoad) {
  expect_same("lfm2", [](ModelCopy& copy) {
    const Json attention = copy.layers_of_kind("full_attention");
    copy.remove_key("layer_types");
    copy.config().set("full_attn_idxs", attention);
    copy.rename_key("intermediate_size", "block_ff_dim");
    copy.rename_key("norm_eps", "block_norm_eps");
    copy.rename_key("num_attention_heads", "num_heads");
    copy.rename_key("hidden_size", "block_dim");
    copy.rename_key("tie_word_embeddings", "tie_embedding");
    copy.remove_key("rope_parameters");
    copy.config().set("rope_theta", 1000000.0);
    copy.config().set("conv_dim", 48);
    copy.config().set("block_use_swiglu", true);
  });
}

TEST(PublishedLfm2, TheWidthOfTheMlpIsDerivedUnlessItIsFinal) {
  const auto width = ModelCopy("lfm2").tensors().at("model.layers.0.feed_forward.w1.weight").shape[0];
  EXPECT_NE(width, ModelCopy("lfm2").config().at("intermediate_size").as_int());  // the adjustment does something here
  expect_same("lfm2", [&](ModelCopy& copy) {
    copy.config().set("block_auto_adjust_ff_dim", false);
    copy.config().set("intermediate_size", width);
  });
}

TEST(PublishedRope, ThetaMayStandAloneOrAmongTheParameters) {
  for (const char* family : {"lfm2", "minimax"}) {
    expect_same(family, [](ModelCopy& copy) {
      copy.remove_key("rope_parameters");
      copy.config().set("rope_theta", 1000000.0);
    });
    expect_same(family, [](ModelCopy& copy) {
      copy.remove_key("rope_parameters");
      copy.config().set("rope_theta", 1000000);
      copy.config().set("rope_scaling", nullptr);
    });
    // And it is read: another theta is another model.
    ModelCopy other(family);
    other.remove_key("rope_parameters");
    other.config().set("rope_theta", 100.0);
    other.write_all();
    EXPECT_NE(logits_with(other.options()), logits_as_stored(family));
  }
}

TEST(PublishedRope, HalfTheHeadTurnsUnderEitherName) {
  ModelCopy by_width("minimax"), by_factor("minimax");
  by_width.config().set("rotary_dim", 8);
  by_factor.config().set("partial_rotary_factor", 0.5);
  by_width.write_all();
  by_factor.write_all();
  const std::vector<float> half = logits_with(by_width.options());
  EXPECT_EQ(logits_with(by_factor.options()), half);
  EXPECT_NE(half, logits_as_stored("minimax"));
}

TEST(PublishedMamba, TheLayoutOfTheMambaPackageIsRefusedByName) {
  ModelCopy copy("mamba");
  copy.config() = Json::Object{{"d_model", 48}, {"n_layer", 4}, {"vocab_size", 320}, {"ssm_cfg", Json::Object{}}};
  copy.write_all();
  try {
    Engine::load(copy.options());
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("mamba_ssm"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coluber
