// SPDX-License-Identifier: Apache-2.0
//
// Spellings under which the hybrids around Mamba are published: respelt, a checkpoint gives the very same logits; what
// would give others is refused by name.
#include <cmath>
#include <cstring>
#include <tuple>

#include "respelt_golden.h"

namespace coluber {
namespace {

class PublishedHybrid : public RespeltGolden {};

const Json kInfinityObject = Json::Object{{"__float__", "Infinity"}};

// The kinds of layers in the words of older configs.
Json in_old_words(const Json& kinds) {
  Json old{Json::Array{}};
  for (const Json& kind : kinds.as_array()) {
    const std::string& word = kind.as_string();
    old.push_back(word == "linear_attention" ? "mamba" : word == "full_attention" ? "attention" : word);
  }
  return old;
}

void remove_keys(ModelCopy& copy, std::initializer_list<const char*> keys) {
  for (const char* key : keys) copy.remove_key(key);
}

TEST_F(PublishedHybrid, BambaListsAttentionLayersOrNamesEveryLayersKind) {
  const Json kinds = Json::Array{"mamba", "mamba", "attention", "mamba"};
  for (const char* key : {"layers_block_type", "layer_types"})
    expect_same("bamba", [&](ModelCopy& copy) {
      copy.remove_key("attn_layer_indices");
      copy.config().set(key, kinds);
    });
}

TEST_F(PublishedHybrid, BambaTurnsHalfAHeadWhateverItsConfigLeavesOut) {
  expect_same("bamba", [](ModelCopy& copy) {
    remove_keys(copy, {"rope_parameters", "partial_rotary_factor"});
    copy.config().set("rope_theta", 10000.0);
    copy.config().set("rope_scaling", nullptr);
  });
  expect_same("bamba", [](ModelCopy& copy) {
    remove_keys(copy, {"rope_parameters", "partial_rotary_factor"});
    copy.config().set("attn_rotary_emb", 6);
  });
}

TEST_F(PublishedHybrid, Mamba2FieldsMayBeDerivedSaidOtherwiseOrLeftOut) {
  for (const char* family : {"bamba", "granitemoehybrid", "falcon_h1"}) {
    expect_same(family, [](ModelCopy& copy) { copy.config().set("mamba_d_head", "auto"); });
    expect_same(family, [](ModelCopy& copy) { copy.config().set("time_step_limit", nullptr); });
    expect_same(family,
                [](ModelCopy& copy) { copy.config().set("time_step_limit", Json::Array{0.0, kInfinityObject}); });
    expect_same(family, [](ModelCopy& copy) {
      remove_keys(copy, {"time_step_limit", "mamba_d_head", "mamba_expand", "mamba_d_conv", "mamba_conv_bias",
                         "mamba_proj_bias", "mamba_chunk_size", "hidden_act", "attention_bias", "mlp_bias"});
    });
  }
}

TEST_F(PublishedHybrid, Mamba2sNormGoesByGroupUnlessTheConfigIsOfAnEngineThatSpansThem) {
  for (const char* family : {"mamba2", "bamba", "granitemoehybrid"}) {
    SCOPED_TRACE(family);
    const auto of_version = [](const Json& version) {
      return [=](ModelCopy& copy) { copy.config().set("transformers_version", version); };
    };
    const auto with_groups = [](int64_t groups) {
      return [=](ModelCopy& copy) { copy.config().set("gated_norm_groups", groups); };
    };
    const std::vector<float> by_group = respelt(family, with_groups(2));
    EXPECT_NE(by_group, as_stored(family)) << "the golden checkpoint is one of 5.17, with two groups";
    for (const char* version : {"4.44.0.dev0", "5.23.0", "5.24.1", "6.0.0", "none"})
      EXPECT_EQ(respelt(family, of_version(version)), by_group) << version;
    EXPECT_EQ(respelt(family, [](ModelCopy& copy) { copy.remove_key("transformers_version"); }), by_group);
    for (const char* version : {"5.0.0", "5.22.0", "5.22.0.dev0"}) expect_same(family, of_version(version));
    expect_same(family, with_groups(1));
    expect_refused(family, with_groups(3), {"gated_norm_groups", "1, 2"});
  }
}

TEST_F(PublishedHybrid, JambasExpertsHaveTwoNamesAndItsRankMayBeDerived) {
  expect_same("jamba", [](ModelCopy& copy) { copy.rename_key("num_experts", "num_local_experts"); });
  expect_same("jamba", [](ModelCopy& copy) {
    copy.config().set("mamba_dt_rank", "auto");
    copy.config().set("mamba_inner_layernorms", true);
    copy.config().set("sliding_window", nullptr);
    remove_keys(copy, {"expert_layer_period", "expert_layer_offset", "mamba_d_conv", "mamba_expand", "rms_norm_eps"});
  });
  expect_refused("jamba", [](ModelCopy& copy) { copy.config().set("attn_layer_offset", 4); }, {"attn_layer_offset"});
}

TEST_F(PublishedHybrid, GraniteNamesLayersInOldWordsAndNoPositionsInTwoWays) {
  for (const char* family : {"granitemoehybrid", "granitemoehybrid_b"})
    expect_same(family, [](ModelCopy& copy) {
      const Json kinds = in_old_words(copy.config().at("layer_types"));
      copy.remove_key("layer_types");
      copy.config().set("layers_block_type", kinds);
    });
  expect_same("granitemoehybrid", [](ModelCopy& copy) { copy.config().set("position_embedding_type", "nope"); });
  EXPECT_NE(respelt("granitemoehybrid", [](ModelCopy& copy) { copy.config().set("position_embedding_type", "rope"); }),
            as_stored("granitemoehybrid"));
}

// One layer of the checkpoint is attention: it alone is such a model. What the config says of Mamba is of no account.
TEST_F(PublishedHybrid, GraniteOfAttentionAloneRunsWithTheRotationOfItsConfig) {
  const auto attention_alone = [](const char* positions) {
    return [positions](ModelCopy& copy) {
      std::map<std::string, StoredTensor> kept;
      for (auto& [name, tensor] : copy.tensors()) {
        const bool of_layer = name.starts_with("model.layers.");
        if (of_layer && !name.starts_with("model.layers.2.")) continue;
        kept.emplace(of_layer ? "model.layers.0." + name.substr(std::strlen("model.layers.2.")) : name, tensor);
      }
      copy.tensors() = std::move(kept);
      copy.config().set("num_hidden_layers", 1);
      copy.config().set("layer_types", Json::Array{"attention"});
      copy.config().set("position_embedding_type", positions);
      copy.config().set("mamba_n_heads", 128);
      copy.config().set("mamba_d_head", 64);
    };
  };
  const auto turned = respelt("granitemoehybrid", attention_alone("rope"));
  const auto unturned = respelt("granitemoehybrid", attention_alone("nope"));
  EXPECT_NE(turned, unturned);
  for (const float logit : turned) ASSERT_TRUE(std::isfinite(logit));
}

TEST_F(PublishedHybrid, NemotronsLayersAreAPatternOrAListUnderTwoNamesInTwoVocabularies) {
  const auto pattern = [](const Json& kinds) {
    std::string letters;
    for (const Json& kind : kinds.as_array())
      letters += kind.as_string() == "linear_attention" ? 'M'
                 : kind.as_string() == "full_attention" ? '*'
                 : kind.as_string() == "mlp"            ? '-'
                                                        : 'E';
    return letters;
  };
  for (const char* family : {"nemotron_h", "nemotron_h_b"}) {
    expect_same(family, [&](ModelCopy& copy) {
      const std::string letters = pattern(copy.config().at("layers_block_type"));
      copy.remove_key("layers_block_type");
      copy.config().set("hybrid_override_pattern", letters);
      copy.config().set("num_hidden_layers", static_cast<int64_t>(letters.size()));
    });
    for (const char* key : {"layers_block_type", "layer_types"})
      expect_same(family, [&](ModelCopy& copy) {
        const Json kinds = in_old_words(copy.config().at("layers_block_type"));
        copy.remove_key("layers_block_type");
        copy.config().set(key, kinds);
        copy.config().set("time_step_limit", Json::Array{0.0, kInfinityObject});
      });
  }
}

TEST_F(PublishedHybrid, NemotronsFieldsHaveOlderNames) {
  expect_same("nemotron_h", [](ModelCopy& copy) {
    copy.rename_key("n_groups", "mamba_n_groups");
    copy.rename_key("conv_kernel", "mamba_d_conv");
    copy.rename_key("time_step_min", "mamba_dt_min");
    copy.rename_key("use_conv_bias", "mamba_conv_bias");
    copy.rename_key("chunk_size", "mamba_chunk_size");
    copy.rename_key("layer_norm_epsilon", "rms_norm_eps");
    copy.rename_key("head_dim", "attention_head_dim");
    copy.rename_key("n_routed_experts", "num_local_experts");
  });
  expect_same("nemotron_h", [](ModelCopy& copy) { rename_everywhere(copy, "backbone.", "model."); });
}

TEST_F(PublishedHybrid, NemotronIsRefusedWithEverythingThatItsConfigLacks) {
  expect_refused("nemotron_h",
                 [](ModelCopy& copy) { remove_keys(copy, {"layers_block_type", "vocab_size", "hidden_size"}); },
                 {"nemotron_h", "vocab_size", "hidden_size"});
  expect_refused("nemotron_h", [](ModelCopy& copy) { copy.remove_key("layers_block_type"); },
                 {"layers_block_type", "hybrid_override_pattern"});
  expect_refused("nemotron_h",
                 [](ModelCopy& copy) {
                   copy.remove_key("layers_block_type");
                   copy.config().set("hybrid_override_pattern", "MEX-ME");
                 },
                 {"hybrid_override_pattern", "\"X\""});
}

TEST_F(PublishedHybrid, NemotronLeavesOutHeadsThatPredictSeveralTokens) {
  ModelCopy copy(golden("nemotron_h"));
  copy.tensors()["mtp.layers.0.norm.weight"] = copy.tensors().at("backbone.norm_f.weight");
  copy.write_all();
  EXPECT_EQ(logits_with(copy.options()), as_stored("nemotron_h"));
  const auto engine = Engine::load(copy.options());
  const std::vector<std::string>& notes = engine->model_info().notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("mtp."), std::string::npos) << notes[0];
}

// The reference runs the shared expert that it finds, whatever the number.
TEST_F(PublishedHybrid, NemotronRunsAStoredSharedExpertWhateverTheConfigCounts) {
  expect_same("nemotron_h", [](ModelCopy& copy) { copy.config().set("n_shared_experts", 0); });
}

// The reference ties nothing in these families.
TEST_F(PublishedHybrid, AStoredHeadIsTheHeadThoughTheConfigSaysTied) {
  for (const char* family : {"nemotron_h", "xlstm", "kimi_linear"})
    expect_same(family, [](ModelCopy& copy) { copy.config().set("tie_word_embeddings", true); });
}

TEST_F(PublishedHybrid, NoNumberOfKeyValueHeadsMeansAsManyAsHeadsWhereItIsNull) {
  for (const char* family : {"bamba", "jamba", "falcon_h1"})
    expect_refused(family, [](ModelCopy& copy) { copy.config().set("num_key_value_heads", nullptr); },
                   {"self_attn.k_proj.weight", "[48, 48]"});
}

// The width of an attention head beside that of a Mamba head: each has its own key.
TEST_F(PublishedHybrid, FalconH1KeepsTheWidthsOfItsTwoKindsOfHeadsApart) {
  expect_same("falcon_h1", [](ModelCopy& copy) { copy.config().set("head_dim", 12); });
  expect_refused("falcon_h1", [](ModelCopy& copy) { copy.config().set("head_dim", 16); }, {"self_attn.q_proj.weight"});
  expect_refused("falcon_h1", [](ModelCopy& copy) { copy.config().set("mamba_d_head", 12); },
                 {"mamba_d_head", "mamba_d_ssm"});
}

TEST_F(PublishedHybrid, FalconH1sMultipliersAreOneWhereTheyAreLeftOut) {
  const auto left_out = respelt("falcon_h1", [](ModelCopy& copy) {
    remove_keys(copy, {"ssm_multipliers", "mlp_multipliers", "ssm_in_multiplier", "ssm_out_multiplier",
                       "attention_in_multiplier", "attention_out_multiplier", "key_multiplier", "lm_head_multiplier",
                       "embedding_multiplier"});
  });
  EXPECT_EQ(left_out, respelt("falcon_h1", [](ModelCopy& copy) {
              copy.config().set("ssm_multipliers", Json::Array{1, 1, 1, 1, 1});
              copy.config().set("mlp_multipliers", Json::Array{1.0, 1.0});
              for (const char* key :
                   {"ssm_in_multiplier", "ssm_out_multiplier", "attention_in_multiplier", "attention_out_multiplier",
                    "key_multiplier", "lm_head_multiplier", "embedding_multiplier"})
                copy.config().set(key, 1);
            }));
  EXPECT_NE(left_out, as_stored("falcon_h1"));
  expect_same("falcon_h1", [](ModelCopy& copy) { copy.config().set("mamba_d_ssm", nullptr); });
  expect_refused("falcon_h1", [](ModelCopy& copy) { copy.config().set("ssm_multipliers", Json::Array{1, 1}); },
                 {"ssm_multipliers"});
}

TEST_F(PublishedHybrid, ZambasLayersAreAListInOldWordsOrFollowFromAPeriod) {
  expect_same("zamba", [](ModelCopy& copy) {
    const Json kinds = in_old_words(copy.config().at("layers_block_type"));
    copy.config().set("layers_block_type", kinds);
    copy.config().set("mamba_dt_rank", "auto");
    copy.config().set("attention_head_dim", nullptr);
    copy.config().set("attention_hidden_size", nullptr);
  });
  expect_same("zamba", [](ModelCopy& copy) {
    copy.remove_key("layers_block_type");
    copy.config().set("attn_layer_period", 2);
    copy.config().set("attn_layer_offset", 1);
  });
}

TEST_F(PublishedHybrid, Zamba2sLayersAreAListOrTheNumbersOfTheHybridOnes) {
  expect_same("zamba2", [](ModelCopy& copy) { copy.remove_key("layers_block_type"); });
  expect_same("zamba2", [](ModelCopy& copy) {
    const Json kinds = in_old_words(copy.config().at("layers_block_type"));
    copy.config().set("layers_block_type", kinds);
    remove_keys(copy, {"hybrid_layer_ids", "mamba_headdim", "attention_head_dim", "attention_hidden_size",
                       "kv_channels", "num_query_groups", "num_key_value_heads"});
  });
  expect_refused("zamba2", [](ModelCopy& copy) { remove_keys(copy, {"layers_block_type", "hybrid_layer_ids"}); },
                 {"layers_block_type", "hybrid_layer_ids"});
}

TEST_F(PublishedHybrid, AStoredCopyOfASharedBlockGivesWhatTheBlockGives) {
  for (const auto& [family, block, from, to] :
       {std::tuple{"zamba", ".shared_transf.", "model.layers.2", "model.layers.4"},
        std::tuple{"zamba2", ".shared_transformer.", "model.layers.1", "model.layers.4"}})
    expect_same(family, [&](ModelCopy& copy) {
      const std::string prefix = std::string(from) + block;
      std::vector<std::pair<std::string, StoredTensor>> copies;
      for (const auto& [name, tensor] : copy.tensors())
        if (name.starts_with(prefix)) copies.emplace_back(to + name.substr(std::strlen(from)), tensor);
      ASSERT_FALSE(copies.empty());
      copy.tensors().insert(copies.begin(), copies.end());
    });
}

TEST_F(PublishedHybrid, TheMambaPackagesConfigOverTheSameWeightsIsTheSameModel) {
  for (const char* family : {"mamba", "mamba_bf16"})
    expect_same(family, [](ModelCopy& copy) {
      copy.rename_tensor("backbone.embeddings.weight", "backbone.embedding.weight");
      copy.tensors()["lm_head.weight"] = copy.tensors().at("backbone.embedding.weight");
      copy.config() = Json::Object{{"d_model", 48},          {"n_layer", 4},
                                   {"vocab_size", 315},      {"ssm_cfg", Json::Object{}},
                                   {"rms_norm", true},       {"residual_in_fp32", true},
                                   {"fused_add_norm", true}, {"pad_vocab_size_multiple", 8}};
    });
}

TEST_F(PublishedHybrid, WhatTheMambaPackageKnowsAndIsNotComputedIsRefused) {
  const auto package = [](const char* key, const Json& value) {
    return [=](ModelCopy& copy) {
      copy.rename_tensor("backbone.embeddings.weight", "backbone.embedding.weight");
      copy.config() = Json::Object{{"d_model", 48}, {"n_layer", 4}, {"vocab_size", 320}, {"ssm_cfg", Json::Object{}}};
      copy.config().set(key, value);
    };
  };
  expect_refused("mamba", package("d_intermediate", 96), {"backbone.layers.0.mlp.fc1.weight", "[256, 48]"});
  expect_refused("mamba", package("rms_norm", false), {"backbone.layers.0.norm.bias"});
  expect_refused("mamba", package("ssm_cfg", Json::Object{{"layer", "Mamba3"}}), {"ssm_cfg.layer"});
  expect_refused("mamba", package("attn_layer_idx", Json::Array{1}), {"attn_cfg.num_heads"});
}

}  // namespace
}  // namespace coluber
