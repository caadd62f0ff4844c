// SPDX-License-Identifier: Apache-2.0
//
// Spellings under which models with linear attention are published: respelt, a checkpoint gives the very same logits;
// what would give others is refused by name. The checkpoints lie beside the repository.
#include "respelt_golden.h"

namespace coluber {
namespace {

class PublishedLinear : public RespeltGolden {};

TEST_F(PublishedLinear, MiniMaxListsItsLayersUnderEitherName) {
  for (const char* family : {"minimax_text_01", "minimax_text_01_b"}) {
    expect_same(family, [](ModelCopy& copy) { copy.rename_key("attn_type_list", "decoder_attention_types"); });
    expect_same(family, [](ModelCopy& copy) { copy.remove_key("model_type"); });
    expect_same(family, [](ModelCopy& copy) { copy.remove_key("tie_word_embeddings"); });
  }
}

TEST_F(PublishedLinear, MiniMaxTakesTheInputAsResidualWithoutPostnorm) {
  const auto without = respelt("minimax_text_01", [](ModelCopy& copy) { copy.config().set("postnorm", false); });
  EXPECT_NE(without, as_stored("minimax_text_01"));
  EXPECT_EQ(without, respelt("minimax_text_01", [](ModelCopy& copy) { copy.remove_key("postnorm"); }));
}

TEST_F(PublishedLinear, MiniMaxRefusesWhatItDoesNotCompute) {
  expect_refused("minimax_text_01", [](ModelCopy& copy) { copy.config().set("shared_intermediate_size", 64); },
                 {"shared_intermediate_size", "minimax_text_01"});
  expect_refused("minimax_text_01", [](ModelCopy& copy) { copy.remove_key("attn_type_list"); }, {"attn_type_list"});
  expect_refused("minimax_text_01", [](ModelCopy& copy) { copy.config().set("attn_type_list", Json::Array{0, 1, 2}); },
                 {"attn_type_list"});
}

TEST_F(PublishedLinear, BailingsDefaultsMayBeLeftOut) {
  expect_same("bailing_linear", [](ModelCopy& copy) {
    for (const char* key : {"moe_shared_expert_intermediate_size", "num_nextn_predict_layers", "score_function",
                            "moe_router_enable_expert_bias", "linear_silu", "use_bias", "use_qkv_bias", "use_rmsnorm"})
      copy.remove_key(key);
    copy.config().set("head_dim", nullptr);
  });
  expect_same("bailing_linear", [](ModelCopy& copy) {
    copy.config().set("rope_parameters", Json::Object{{"rope_theta", copy.config().at("rope_theta")},
                                                      {"partial_rotary_factor", 0.5},
                                                      {"rope_type", "default"}});
    for (const char* key : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) copy.remove_key(key);
  });
}

TEST_F(PublishedLinear, BailingRefusesAnotherClassOfItsModelType) {
  expect_refused("bailing_hybrid",
                 [](ModelCopy& copy) { copy.config().set("architectures", Json::Array{"BailingMoeV3ForCausalLM"}); },
                 {"architectures", "BailingMoeV2_5ForCausalLM"});
  expect_same("bailing_hybrid", [](ModelCopy& copy) { copy.remove_key("rope_interleave"); });
  expect_refused("bailing_linear", [](ModelCopy& copy) { copy.config().set("norm_head", true); }, {"norm_head"});
}

TEST_F(PublishedLinear, TheFusedNormOfGlaAndRetNetHasTwoNames) {
  for (const char* family : {"gla", "retnet"})
    expect_same(family, [](ModelCopy& copy) {
      rename_everywhere(copy, "g_norm_swish_gate", "g_norm");
      copy.config().set("fuse_norm", false);
    });
}

TEST_F(PublishedLinear, FlasDefaultsMayBeLeftOut) {
  expect_same("gla", [](ModelCopy& copy) {
    for (const char* key : {"expand_k", "expand_v", "hidden_ratio", "intermediate_size", "norm_eps", "use_short_conv",
                            "use_output_gate", "clamp_min", "num_kv_heads", "feature_map", "attn", "hidden_act"})
      copy.remove_key(key);
  });
  expect_same("retnet", [](ModelCopy& copy) {
    for (const char* key : {"expand_k", "expand_v", "num_kv_heads", "attn"}) copy.remove_key(key);
    copy.config().set("use_short_conv", true);  // which this model ignores
  });
  expect_same("gla", [](ModelCopy& copy) { copy.config().set("intermediate_size", 256); });
}

TEST_F(PublishedLinear, Hgrn2CountsItsHeadsEitherWay) {
  expect_same("hgrn2", [](ModelCopy& copy) { copy.config().set("num_heads", nullptr); });
  expect_same("hgrn2", [](ModelCopy& copy) { copy.config().set("num_heads", 7); });  // expand_ratio goes before it
  expect_same("hgrn2", [](ModelCopy& copy) { copy.config().set("expand_ratio", nullptr); });
  expect_refused("hgrn2", [](ModelCopy& copy) { copy.config().set("expand_ratio", 5); }, {"expand_ratio"});
}

TEST_F(PublishedLinear, FlaRefusesWhatItDoesNotCompute) {
  expect_refused("gla", [](ModelCopy& copy) { copy.config().set("feature_map", "elu"); }, {"feature_map"});
  expect_refused("gla", [](ModelCopy& copy) { copy.config().set("expand_k", 0.3); }, {"expand_k", "whole number"});
  expect_refused(
      "gla",
      [](ModelCopy& copy) { copy.config().set("attn", Json::Object{{"layers", Json::Array{9}}, {"num_heads", 3}}); },
      {"attn", "layers"});
  expect_refused("hgrn2", [](ModelCopy& copy) { copy.tensors().erase("model.lower_bounds"); }, {"model.lower_bounds"});
}

}  // namespace
}  // namespace coluber
