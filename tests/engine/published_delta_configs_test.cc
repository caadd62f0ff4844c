// SPDX-License-Identifier: Apache-2.0
//
// Spellings under which the families with a delta rule are published: respelt, a checkpoint gives the very same logits;
// what would give others is refused by name.
#include <cmath>

#include "respelt_golden.h"

namespace coluber {
namespace {

class PublishedDelta : public RespeltGolden {};

void remove_keys(ModelCopy& copy, std::initializer_list<const char*> keys) {
  for (const char* key : keys) copy.remove_key(key);
}

// Stacks `names`, in order, below one another.
StoredTensor stacked(ModelCopy& copy, const std::vector<std::string>& names, const Shape& shape) {
  StoredTensor all;
  all.shape = shape;
  for (const std::string& name : names) {
    StoredTensor& one = copy.tensors().at(name);
    all.dtype = one.dtype;
    all.bytes.insert(all.bytes.end(), one.bytes.begin(), one.bytes.end());
  }
  for (const std::string& name : names) copy.tensors().erase(name);
  return all;
}

// Experts in one tensor each of gate and up together, and of down, as Qwen3.5 is published.
void stack_experts(ModelCopy& copy, int64_t layers, int64_t experts, int64_t width, int64_t hidden) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::vector<std::string> gates_and_ups, downs;
    for (int64_t e = 0; e < experts; ++e) {
      for (const char* part : {".gate_proj.weight", ".up_proj.weight"})
        gates_and_ups.push_back(prefix + std::to_string(e) + part);
      downs.push_back(prefix + std::to_string(e) + ".down_proj.weight");
    }
    copy.tensors().emplace(prefix + "gate_up_proj", stacked(copy, gates_and_ups, Shape{experts, 2 * width, hidden}));
    copy.tensors().emplace(prefix + "down_proj", stacked(copy, downs, Shape{experts, hidden, width}));
  }
}

void add_tensor(ModelCopy& copy, const std::string& name) {
  StoredTensor tensor;
  tensor.shape = Shape{2};
  tensor.bytes.resize(8);
  copy.tensors().emplace(name, std::move(tensor));
}

TEST_F(PublishedDelta, QwensLayersAreAListOrAnInterval) {
  for (const char* family : {"qwen3_next", "qwen3_5", "qwen3_5_moe"}) {
    expect_same(family, [](ModelCopy& copy) {
      copy.remove_key("layer_types");
      copy.config().set("full_attention_interval", 4);
    });
    expect_same(family, [](ModelCopy& copy) { copy.remove_key("layer_types"); });
  }
  expect_refused("qwen3_next", [](ModelCopy& copy) { copy.config().set("num_hidden_layers", 5); }, {"layer_types"});
}

TEST_F(PublishedDelta, LayersWithAnIndexerHaveAWordOfTheirFamilyOrOneForAll) {
  const auto in_todays_words = [](const Json& text) {
    Json kinds{Json::Array{}}, renamed = text;
    for (const Json& kind : text.at("layer_types").as_array())
      kinds.push_back(kind.as_string().ends_with("sparse_attention") ? Json("indexed_attention") : kind);
    renamed.set("layer_types", std::move(kinds));
    return renamed;
  };
  expect_same("qwen4_exp", [&](ModelCopy& copy) { copy.config() = in_todays_words(copy.config()); });
  expect_same("glm5_next", [&](ModelCopy& copy) {
    copy.config().set("text_config", in_todays_words(copy.config().at("text_config")));
  });
}

TEST_F(PublishedDelta, QwensRotationHasTwoSpellings) {
  for (const char* family : {"qwen3_next", "qwen3_5", "qwen3_5_moe"}) {
    expect_same(family, [](ModelCopy& copy) {
      remove_keys(copy, {"rope_parameters"});
      copy.config().set("rope_theta", 10000);
      copy.config().set("rope_scaling", nullptr);
    });
    expect_same(family, [](ModelCopy& copy) { remove_keys(copy, {"rope_parameters", "partial_rotary_factor"}); });
  }
}

TEST_F(PublishedDelta, HeadsForSeveralTokensAndTowersAreLeftOut) {
  for (const char* family : {"qwen3_next", "qwen3_5", "qwen3_5_vl"})
    expect_same(family, [](ModelCopy& copy) { add_tensor(copy, "mtp.layers.0.mlp.gate.weight"); });
  expect_same("qwen3_5_vl", [](ModelCopy& copy) {
    std::erase_if(copy.tensors(), [](const auto& tensor) { return tensor.first.starts_with("model.visual."); });
  });
}

TEST_F(PublishedDelta, AContainersTextPartMayStandAloneAndTieInEitherConfig) {
  expect_same("qwen3_5_vl", [](ModelCopy& copy) {
    std::erase_if(copy.tensors(), [](const auto& tensor) { return tensor.first.starts_with("model.visual."); });
    rename_everywhere(copy, "model.language_model.", "model.");
    copy.config() = Json(copy.config().at("text_config"));
  });
  expect_same("qwen3_5_vl", [](ModelCopy& copy) {
    Json text = copy.config().at("text_config");
    std::erase_if(text.as_object(), [](const Json::Member& member) { return member.first == "tie_word_embeddings"; });
    copy.config().set("text_config", std::move(text));
  });
}

TEST_F(PublishedDelta, Qwen35sExpertsAreOneTensorEachOrStacked) {
  expect_same("qwen3_5_moe", [](ModelCopy& copy) { stack_experts(copy, 4, 4, 24, 48); });
}

TEST_F(PublishedDelta, Qwen3NextWithoutExpertsIsOneWithMlpsAlone) {
  expect_refused("qwen3_next", [](ModelCopy& copy) { copy.config().set("num_experts", 0); },
                 {"model.layers.0.mlp.gate_proj.weight"});
  expect_refused("qwen3_next", [](ModelCopy& copy) { copy.config().set("num_experts_per_tok", 5); },
                 {"num_experts_per_tok"});
  expect_refused("qwen3_next", [](ModelCopy& copy) { copy.config().set("linear_num_key_heads", 3); },
                 {"linear_num_key_heads"});
}

TEST_F(PublishedDelta, OlmosNormsAndConvolutionsAreStoredInTwoWays) {
  expect_same("olmo_hybrid", [](ModelCopy& copy) {
    rename_everywhere(copy, "attention_layer_norm", "input_layernorm");
    rename_everywhere(copy, ".feedforward_layer_norm", ".post_attention_layernorm");
  });
  expect_same("olmo_hybrid", [](ModelCopy& copy) {
    for (const char* layer : {"0", "1", "3"}) {
      const std::string prefix = std::string("model.layers.") + layer + ".linear_attn.";
      std::vector<std::string> parts;
      for (const char* part : {"q", "k", "v"}) parts.push_back(prefix + part + "_conv1d.weight");
      copy.tensors().emplace(prefix + "conv1d.weight", stacked(copy, parts, Shape{192, 1, 4}));
    }
  });
}

TEST_F(PublishedDelta, OlmoFillsInHeadsAndTurnsNothingWithoutABase) {
  expect_same("olmo_hybrid", [](ModelCopy& copy) {
    remove_keys(copy, {"linear_num_key_heads", "linear_num_value_heads", "linear_conv_kernel_dim",
                       "linear_allow_neg_eigval", "rms_norm_eps", "attention_bias", "hidden_act"});
  });
  // As in transformers 5: without any word the base is 10000, which is the checkpoint's; with null there are no turns.
  expect_same("olmo_hybrid", [](ModelCopy& copy) { copy.config().set("rope_parameters", nullptr); });
  const auto turned = as_stored("olmo_hybrid");
  EXPECT_NE(respelt("olmo_hybrid",
                    [](ModelCopy& copy) {
                      copy.remove_key("rope_parameters");
                      copy.config().set("rope_theta", nullptr);
                    }),
            turned);
  EXPECT_NE(respelt("olmo_hybrid",
                    [](ModelCopy& copy) {
                      copy.config().set("rope_parameters", Json(Json::Object{{"rope_theta", nullptr}}));
                    }),
            turned);
  EXPECT_NE(respelt("olmo_hybrid", [](ModelCopy& copy) { copy.config().set("linear_allow_neg_eigval", false); }),
            turned);
}

TEST_F(PublishedDelta, FlasDefaultsNeedNoWords) {
  for (const char* family : {"delta_net", "gated_deltanet"}) {
    expect_same(family, [](ModelCopy& copy) {
      remove_keys(copy, {"use_short_conv", "conv_size", "norm_eps", "allow_neg_eigval", "attn", "hidden_act", "qk_norm",
                         "qk_activation", "use_beta", "use_gate", "use_output_norm", "expand_k", "num_v_heads",
                         "tie_word_embeddings"});
    });
    expect_refused(family, [](ModelCopy& copy) { copy.config().set("attnres_block_size", 2); }, {"attnres_block_size"});
  }
  expect_refused("delta_net", [](ModelCopy& copy) { copy.config().set("qk_activation", "tanh"); }, {"qk_activation"});
}

TEST_F(PublishedDelta, WithoutBetaDeltaNetReplacesAllThatItHolds) {
  const auto without = [](bool negative) {
    return [negative](ModelCopy& copy) {
      std::erase_if(copy.tensors(), [](const auto& t) { return t.first.find("b_proj") != std::string::npos; });
      copy.config().set("use_beta", false);
      copy.config().set("allow_neg_eigval", negative);
    };
  };
  const auto plain = respelt("delta_net", without(false));
  EXPECT_NE(plain, as_stored("delta_net"));
  EXPECT_NE(plain, respelt("delta_net", without(true)));
  for (const float logit : plain) ASSERT_TRUE(std::isfinite(logit));
}

}  // namespace
}  // namespace coluber
