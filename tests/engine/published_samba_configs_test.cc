// SPDX-License-Identifier: Apache-2.0
//
// Spellings under which Samba is published, and what is refused. Its checkpoint lies in tests/data.
#include <gtest/gtest.h>

#include "respelt_golden.h"

namespace coluber {
namespace {

class PublishedSamba : public RespeltGolden {
 protected:
  void SetUp() override {}

  static std::vector<float> logits_of(const Respell& respell) {
    ModelCopy copy("samba");
    respell(copy);
    copy.write_all();
    return logits_with(copy.options());
  }
  static std::vector<float> as_stored() {
    return logits_of([](ModelCopy&) {});
  }
  static void expect_refused(const Respell& respell, std::initializer_list<const char*> words) {
    try {
      logits_of(respell);
      ADD_FAILURE() << "was not refused; expected: " << *words.begin();
    } catch (const Error& error) {
      for (const char* word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " in: " << error.what();
    }
  }
  static void erase_everywhere(ModelCopy& copy, const std::string& part) {
    const size_t before = copy.tensors().size();
    std::erase_if(copy.tensors(), [&](const auto& entry) { return entry.first.find(part) != std::string::npos; });
    ASSERT_LT(copy.tensors().size(), before) << part;
  }
};

void set_in_attn(ModelCopy& copy, const std::string& key, const Json& value) {
  Json attn = copy.config().at("attn");
  attn.set(key, value);
  copy.config().set("attn", std::move(attn));
}

void erase_attention_biases(ModelCopy& copy) {
  std::erase_if(copy.tensors(), [](const auto& entry) {
    return entry.first.ends_with("q_proj.bias") || entry.first.ends_with("k_proj.bias") ||
           entry.first.ends_with("v_proj.bias");
  });
}

TEST_F(PublishedSamba, DefaultsMayBeLeftOut) {
  EXPECT_EQ(as_stored(), logits_of([](ModelCopy& copy) {
              for (const char* key : {"expand", "hidden_ratio", "intermediate_size", "norm_eps", "state_size",
                                      "conv_kernel", "use_bias", "use_conv_bias", "time_step_rank", "hidden_act"})
                copy.remove_key(key);
            }));
  EXPECT_EQ(as_stored(), logits_of([](ModelCopy& copy) { copy.config().set("time_step_rank", "auto"); }));
}

TEST_F(PublishedSamba, TheWidthInItsConfigIsTheMixers) {
  expect_refused([](ModelCopy& copy) { copy.config().set("intermediate_size", 256); }, {"mixer.in_proj.weight"});
  expect_refused([](ModelCopy& copy) { copy.config().set("hidden_ratio", 16); }, {"mlp.up_proj.weight"});
}

TEST_F(PublishedSamba, TheMlpsGateMayLieInOneWeightWithWhatItGates) {
  EXPECT_EQ(as_stored(), logits_of([](ModelCopy& copy) {
              for (int layer = 0; layer < 4; ++layer) {
                const std::string mlp = "backbone.layers." + std::to_string(layer) + ".mlp.";
                auto up = copy.tensors().extract(mlp + "up_proj.weight").mapped();
                StoredTensor& gate = copy.tensors().at(mlp + "gate_proj.weight");
                gate.bytes.insert(gate.bytes.end(), up.bytes.begin(), up.bytes.end());
                gate.shape = Shape{gate.shape[0] + up.shape[0], gate.shape[1]};
              }
            }));
}

TEST_F(PublishedSamba, TheFirstReleaseHasItsAttentionBesideTheOtherFields) {
  const auto listed = logits_of([](ModelCopy& copy) {
    set_in_attn(copy, "qkv_bias", false);
    erase_attention_biases(copy);
  });
  const auto plain = logits_of([](ModelCopy& copy) {
    for (const char* key : {"num_heads", "num_kv_heads", "window_size"})
      copy.config().set(key, copy.config().at("attn").at(key));
    copy.remove_key("attn");
    erase_attention_biases(copy);
  });
  EXPECT_EQ(plain, listed);
  expect_refused([](ModelCopy& copy) { copy.remove_key("attn"); }, {"num_heads", "18"});
}

TEST_F(PublishedSamba, TheWindowHidesThePastAndLiftsTheLimit) {
  const auto limit_with = [](const Json& window) {
    ModelCopy copy("samba");
    set_in_attn(copy, "window_size", window);
    copy.write_all();
    const auto engine = Engine::load(copy.options());
    return engine->model_info().max_position_embeddings;
  };
  EXPECT_EQ(limit_with(8), 0);
  EXPECT_EQ(limit_with(Json()), 2048);
  EXPECT_NE(as_stored(), logits_of([](ModelCopy& copy) { set_in_attn(copy, "window_size", 7); }));
}

TEST_F(PublishedSamba, AStoredBiasOfTheConvolutionCountsWhateverTheConfigSays) {
  const auto unset = [](ModelCopy& copy) { copy.config().set("use_conv_bias", false); };
  EXPECT_EQ(as_stored(), logits_of(unset));
  EXPECT_NE(as_stored(), logits_of([&](ModelCopy& copy) {
              unset(copy);
              erase_everywhere(copy, "conv1d.bias");
            }));
  expect_refused([](ModelCopy& copy) { erase_everywhere(copy, "conv1d.bias"); }, {"conv1d.bias"});
}

TEST_F(PublishedSamba, WhatIsNotComputedIsRefused) {
  expect_refused([](ModelCopy& copy) { copy.config().set("attnres_block_size", 2); }, {"attnres_block_size"});
  expect_refused([](ModelCopy& copy) { copy.config().set("hidden_act", "powlu"); }, {"hidden_act", "powlu"});
  expect_refused([](ModelCopy& copy) { copy.config().set("attn", Json::Array{copy.config().at("attn")}); }, {"attn"});
  expect_refused([](ModelCopy& copy) { copy.config().set("expand", 0.3); }, {"expand", "whole number"});
}

}  // namespace
}  // namespace coluber
