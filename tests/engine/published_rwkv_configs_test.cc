// SPDX-License-Identifier: Apache-2.0
//
// Spellings under which RWKV and xLSTM are published: respelt, a checkpoint gives the very same logits; what would give
// others is refused by name. The checkpoints lie beside the repository.
#include <gtest/gtest.h>

#include "respelt_golden.h"

namespace coluber {
namespace {

class PublishedRwkv : public RespeltGolden {};

// One tensor of all six mixes, as older checkpoints of flash-linear-attention have it.
void join_mixes(ModelCopy& copy, const std::string& layer) {
  StoredTensor joined;
  for (const char* letter : {"r", "w", "k", "v", "a", "g"}) {
    const auto node = copy.tensors().extract(layer + ".x_" + letter);
    ASSERT_FALSE(node.empty()) << layer << " " << letter;
    const StoredTensor& mix = node.mapped();
    joined.dtype = mix.dtype;
    joined.shape = Shape{6, mix.shape.count()};
    joined.bytes.insert(joined.bytes.end(), mix.bytes.begin(), mix.bytes.end());
  }
  copy.tensors().emplace(layer + ".x_x", std::move(joined));
}

TEST_F(PublishedRwkv, TheSixMixesMayBeOneTensor) {
  expect_same("rwkv7_fla", [](ModelCopy& copy) {
    for (const char* layer : {"0", "1", "2"}) join_mixes(copy, std::string("model.layers.") + layer + ".attn");
  });
}

TEST_F(PublishedRwkv, BothNamesOfRwkv7AreOneModel) {
  const std::vector<float> blinkdl = as_stored("rwkv7_pth"), fla = as_stored("rwkv7_fla");
  ASSERT_EQ(blinkdl.size(), fla.size());
  for (size_t i = 0; i < fla.size(); ++i) ASSERT_NEAR(blinkdl[i], fla[i], 1e-4) << i;
}

TEST_F(PublishedRwkv, SizesOfRwkv7MayBeLeftToTheirDefaults) {
  expect_same("rwkv7_fla", [](ModelCopy& copy) {
    copy.remove_key("num_heads");
    copy.config().set("intermediate_size", nullptr);  // hidden_size * hidden_ratio
    copy.config().set("value_dim", nullptr);
  });
  expect_same("rwkv7_fla", [](ModelCopy& copy) {
    copy.remove_key("head_dim");
    copy.remove_key("norm_eps");
    copy.remove_key("a_low_rank_dim");
  });
}

TEST_F(PublishedRwkv, WhatAConfigMayNotSayIsNamed) {
  expect_refused("rwkv7_fla",
                 [](ModelCopy& copy) { copy.config().set("attn", Json::Object{{"layers", Json::Array{1}}}); },
                 {"attn must be null"});
  expect_refused("rwkv7_fla", [](ModelCopy& copy) { copy.config().set("head_dim", 48); },
                 {"head_dim must divide hidden_size"});
  expect_refused("rwkv7", [](ModelCopy& copy) { copy.config().set("hidden_size", 64); },
                 {"hidden_size must be that of the tensors, 128"});
  expect_refused("xlstm", [](ModelCopy& copy) { copy.config().set("num_heads", 3); }, {"num_heads must divide"});
}

void rename_to_hugging_face(ModelCopy& copy) {
  rename_everywhere(copy, ".att.", ".attention.");
  rename_everywhere(copy, ".ffn.", ".feed_forward.");
  rename_everywhere(copy, ".ln0.", ".pre_ln.");
  rename_everywhere(copy, "blocks.", "rwkv.blocks.");
  rename_everywhere(copy, "ln_out.", "rwkv.ln_out.");
  rename_everywhere(copy, "emb.", "rwkv.embeddings.");
}

TEST_F(PublishedRwkv, HuggingFacesNamesOfRwkv5And6GiveTheSameLogits) {
  expect_same("rwkv6", [](ModelCopy& copy) {
    rename_to_hugging_face(copy);
    copy.config().set("model_type", "rwkv6");
  });
  expect_same("rwkv5_2", [](ModelCopy& copy) {
    rename_to_hugging_face(copy);
    for (const auto& [letter, word] : {std::pair("k", "key"), {"v", "value"}, {"r", "receptance"}, {"g", "gate"}})
      rename_everywhere(copy, std::string("time_mix_") + letter, std::string("time_mix_") + word);
    copy.config().set("model_type", "rwkv5");
    copy.config().set("head_size", 64);
  });
}

TEST_F(PublishedRwkv, BlinkDlsNamesOfRwkv4NeedNoConfig) {
  const auto unscaled = [](ModelCopy& copy) { copy.config().set("rescale_every", 0); };
  const auto bare = [](ModelCopy& copy) {
    copy.config() = Json(Json::Object{});
    rename_everywhere(copy, "rwkv.", "");
    rename_everywhere(copy, "embeddings.", "emb.");
    rename_everywhere(copy, ".attention.", ".att.");
    rename_everywhere(copy, ".feed_forward.", ".ffn.");
    rename_everywhere(copy, ".pre_ln.", ".ln0.");
    rename_everywhere(copy, "time_mix_key", "time_mix_k");
    rename_everywhere(copy, "time_mix_value", "time_mix_v");
    rename_everywhere(copy, "time_mix_receptance", "time_mix_r");
  };
  EXPECT_EQ(respelt("rwkv", bare), respelt("rwkv", unscaled));
}

TEST_F(PublishedRwkv, AMissingTensorOfABareCheckpointIsNamed) {
  expect_refused("rwkv7_pth", [](ModelCopy& copy) { copy.tensors().erase("blocks.1.att.w2"); }, {"blocks.1.att.w2"});
  expect_refused("rwkv6", [](ModelCopy& copy) { copy.tensors().erase("blocks.0.ffn.key.weight"); },
                 {"blocks.0.ffn.key.weight", "is missing"});
}

TEST_F(PublishedRwkv, XlstmsOwnNamesOfSizesAndDefaults) {
  expect_same("xlstm", [](ModelCopy& copy) {
    copy.remove_key("hidden_size");
    copy.remove_key("num_hidden_layers");
  });
  expect_same("xlstm", [](ModelCopy& copy) {
    copy.remove_key("embedding_dim");
    copy.remove_key("num_blocks");
    copy.remove_key("eps");
    copy.remove_key("gate_soft_cap");
    copy.remove_key("output_logit_soft_cap");
    copy.remove_key("weight_mode");
  });
}

}  // namespace
}  // namespace coluber
