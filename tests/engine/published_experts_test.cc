// SPDX-License-Identifier: Apache-2.0
//
// Spellings of LFM2-MoE, RecurrentGemma, ZAYA and Inkling: what their first configs left out or called otherwise.
#include "respelt_golden.h"

namespace coluber {
namespace {

using PublishedLfm2Moe = RespeltGolden;
using PublishedRecurrentGemma = RespeltGolden;
using PublishedZaya = RespeltGolden;
using PublishedInkling = RespeltGolden;

// Cuts a stack of experts into a tensor each, or the other way round: both are published.
void split_stack(ModelCopy& copy, const std::string& block, const std::vector<std::string>& parts,
                 const std::string& stack) {
  StoredTensor stacked = copy.tensors().at(block + stack);
  copy.tensors().erase(block + stack);
  const int64_t experts = stacked.shape[0], rows = stacked.shape[1] / static_cast<int64_t>(parts.size());
  const size_t bytes = stacked.bytes.size() / static_cast<size_t>(experts) / parts.size();
  for (int64_t e = 0; e < experts; ++e) {
    for (size_t part = 0; part < parts.size(); ++part) {
      const auto first =
          stacked.bytes.begin() + static_cast<int64_t>((static_cast<size_t>(e) * parts.size() + part) * bytes);
      copy.tensors()[block + "experts." + std::to_string(e) + "." + parts[part] + ".weight"] = {
          stacked.dtype, Shape{rows, stacked.shape[2]}, {first, first + static_cast<int64_t>(bytes)}};
    }
  }
}

void stack_experts(ModelCopy& copy, const std::string& block, int64_t experts, const std::vector<std::string>& parts,
                   const std::string& stack) {
  StoredTensor stacked;
  int64_t rows = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (const std::string& part : parts) {
      auto node = copy.tensors().extract(block + "experts." + std::to_string(e) + "." + part + ".weight");
      stacked.dtype = node.mapped().dtype;
      rows += node.mapped().shape[0];
      stacked.shape = Shape{experts, 0, node.mapped().shape[1]};
      stacked.bytes.insert(stacked.bytes.end(), node.mapped().bytes.begin(), node.mapped().bytes.end());
    }
  }
  stacked.shape = Shape{experts, rows / experts, stacked.shape[2]};
  copy.tensors()[block + stack] = std::move(stacked);
}

bool has_tensor(ModelCopy& copy, const std::string& name) { return copy.tensors().contains(name); }

TEST_F(PublishedLfm2Moe, ListedAttentionLayersOldNamesAndLeftOutDefaultsLoad) {
  expect_same("lfm2_moe", [](ModelCopy& copy) {
    const Json attention = copy.layers_of_kind("full_attention");
    copy.remove_key("layer_types");
    copy.config().set("full_attn_idxs", attention);
    copy.rename_key("tie_word_embeddings", "tie_embedding");
    copy.remove_key("rope_parameters");
    copy.config().set("rope_theta", 1000000.0);
    for (const char* key : {"norm_topk_prob", "use_expert_bias", "routed_scaling_factor", "norm_eps", "conv_bias"})
      copy.remove_key(key);
  });
}

TEST_F(PublishedLfm2Moe, ExpertsMayLieInOneTensor) {
  expect_same("lfm2_moe", [](ModelCopy& copy) {
    for (int64_t i = 0; i < 5; ++i) {
      const std::string block = "model.layers." + std::to_string(i) + ".feed_forward.";
      if (!has_tensor(copy, block + "experts.0.w1.weight")) continue;
      stack_experts(copy, block, 4, {"w1", "w3"}, "experts.gate_up_proj");
      stack_experts(copy, block, 4, {"w2"}, "experts.down_proj");
    }
  });
}

TEST_F(PublishedRecurrentGemma, OldNamesNullsAndLeftOutDefaultsLoad) {
  expect_same("recurrent_gemma", [](ModelCopy& copy) {
    copy.remove_key("rope_parameters");
    copy.config().set("rope_theta", 10000.0);
    copy.config().set("lru_width", nullptr);
    copy.rename_key("attention_window_size", "sliding_window");
    copy.rename_key("block_types", "_block_types");
    for (const char* key : {"head_dim", "partial_rotary_factor", "rms_norm_eps", "logits_soft_cap", "conv1d_width",
                            "attention_bias", "tie_word_embeddings", "hidden_activation"})
      copy.remove_key(key);
  });
  expect_same("recurrent_gemma", [](ModelCopy& copy) {
    copy.tensors()["lm_head.weight"] = copy.tensors().at("model.embed_tokens.weight");
  });
}

TEST_F(PublishedRecurrentGemma, TheWindowAndTheBoundOfTheLogitsAreRead) {
  const std::vector<float> stored = as_stored("recurrent_gemma");
  EXPECT_NE(respelt("recurrent_gemma", [](ModelCopy& copy) { copy.config().set("attention_window_size", 3); }), stored);
  EXPECT_NE(respelt("recurrent_gemma", [](ModelCopy& copy) { copy.config().set("logits_soft_cap", 1.0); }), stored);
}

TEST_F(PublishedZaya, ExpertsMayLieApartAndAStrayRopeTypeDoesNotMatter) {
  expect_same("zaya", [](ModelCopy& copy) {
    Json rope = copy.config().at("rope_parameters");
    rope.set("rope_type", "default");
    copy.config().set("rope_parameters", std::move(rope));
    for (int64_t i = 0; i < 4; ++i) {
      const std::string block = "model.layers." + std::to_string(i) + ".mlp.";
      split_stack(copy, block, {"gate_proj", "up_proj"}, "experts.gate_up_proj");
      split_stack(copy, block, {"down_proj"}, "experts.down_proj");
    }
    for (const char* key : {"cca_time0", "cca_time1", "rms_norm_eps", "num_experts_per_tok", "attention_bias",
                            "lm_head_bias", "tie_word_embeddings"})
      copy.remove_key(key);
  });
  expect_same("zaya", [](ModelCopy& copy) { copy.remove_key("rope_parameters"); });
}

TEST_F(PublishedZaya, WhatIsNotSupportedIsRefusedByName) {
  expect_refused("zaya", [](ModelCopy& copy) { copy.config().set("num_experts_per_tok", 2); }, {"num_experts_per_tok"});
  expect_refused("zaya", [](ModelCopy& copy) { copy.config().set("sliding_window", nullptr); }, {"sliding_window"});
}

TEST_F(PublishedInkling, OtherNamesAndListedLocalLayersLoad) {
  expect_same("inkling", [](ModelCopy& copy) {
    const Json local = copy.layers_of_kind("hybrid_sliding");
    copy.remove_key("layer_types");
    copy.config().set("local_layer_ids", local);
    copy.rename_key("sliding_window_size", "sliding_window");
    copy.rename_key("conv_kernel_size", "sconv_kernel_size");
    copy.rename_key("n_routed_experts", "num_local_experts");
    copy.rename_key("max_position_embeddings", "model_max_length");
    copy.rename_key("logits_mup_width_multiplier", "embedding_multiplier");
    copy.rename_key("intermediate_size", "dense_intermediate_size");
    copy.remove_key("rms_norm_eps");
  });
}

TEST_F(PublishedInkling, TheNormOfTheEmbeddingMayBeStoredAsAPartOfIt) {
  expect_same("inkling", [](ModelCopy& copy) {
    copy.rename_tensor("model.embed_norm.weight", "model.embed_tokens.embed_norm.weight");
  });
}

TEST_F(PublishedInkling, TheTextPartOfTheModelThatHearsAndSeesLoads) {
  expect_same("inkling", [](ModelCopy& copy) {
    Json text = copy.config();
    copy.config() = Json::Object{{"model_type", "inkling_mm_model"},
                                 {"architectures", Json::Array{"InklingForConditionalGeneration"}},
                                 {"text_config", std::move(text)},
                                 {"vision_config", Json::Object{}},
                                 {"eos_token_id", 2}};
    std::vector<std::string> names;
    for (const auto& [name, tensor] : copy.tensors())
      if (name.starts_with("model.")) names.push_back(name);
    for (const std::string& name : names) copy.rename_tensor(name, "model.language_model." + name.substr(6));
    const StoredTensor stray = copy.tensors().at("lm_head.weight");
    copy.tensors()["model.vision_tower.patch.weight"] = stray;
    copy.tensors()["model.audio_tower.norm.weight"] = stray;
    copy.tensors()["model.mtp.layers.0.weight"] = stray;
  });
}

// Rows of gates and of what they gate alternate in the first release.
StoredTensor alternating(const StoredTensor& gates, const StoredTensor& gated) {
  const int64_t rank = gates.shape.rank(), rows = gates.shape[rank - 2];
  const auto row = static_cast<size_t>(dtype_bytes(gates.dtype, gates.shape[rank - 1]));
  StoredTensor both{gates.dtype, gates.shape, {}};
  both.shape[rank - 2] = 2 * rows;
  for (size_t at = 0; at < gates.bytes.size(); at += row) {
    for (const StoredTensor* part : {&gates, &gated})
      both.bytes.insert(both.bytes.end(), part->bytes.begin() + static_cast<int64_t>(at),
                        part->bytes.begin() + static_cast<int64_t>(at + row));
  }
  return both;
}

// The halves of a stack's matrices.
std::pair<StoredTensor, StoredTensor> halves(const StoredTensor& stack) {
  const int64_t matrices = stack.shape[0];
  const auto half = stack.bytes.size() / static_cast<size_t>(2 * matrices);
  StoredTensor first{stack.dtype, stack.shape, {}};
  first.shape[1] /= 2;
  StoredTensor second = first;
  for (size_t m = 0; m < static_cast<size_t>(2 * matrices); ++m) {
    std::vector<std::byte>& bytes = (m % 2 == 0 ? first : second).bytes;
    bytes.insert(bytes.end(), stack.bytes.begin() + static_cast<int64_t>(m * half),
                 stack.bytes.begin() + static_cast<int64_t>((m + 1) * half));
  }
  return {first, second};
}

void name_as_the_first_release(ModelCopy& copy) {
  std::map<std::string, StoredTensor>& tensors = copy.tensors();
  std::vector<std::string> blocks;
  for (const auto& [name, tensor] : tensors)
    if (name.ends_with("input_layernorm.weight")) blocks.push_back(name.substr(0, name.find("input_layernorm")));
  const auto merge = [&](const std::string& gates, const std::string& gated, const std::string& both) {
    if (!tensors.contains(gates)) return;
    tensors[both] = alternating(tensors.at(gates), tensors.at(gated));
    tensors.erase(gates);
    tensors.erase(gated);
  };
  for (const std::string& block : blocks) {
    merge(block + "mlp.gate_proj.weight", block + "mlp.up_proj.weight", block + "mlp.w13_dn.weight");
    merge(block + "mlp.shared_experts.gate_proj", block + "mlp.shared_experts.up_proj",
          block + "mlp.shared_experts.shared_w13_weight");
    const auto stack = tensors.find(block + "mlp.experts.gate_up_proj");
    if (stack == tensors.end()) continue;
    const auto [gates, gated] = halves(stack->second);
    tensors.erase(stack);
    tensors[block + "mlp.experts.w13_weight"] = alternating(gates, gated);
  }
  const std::pair<const char*, const char*> names[] = {
      {"mlp.shared_experts.down_proj", "mlp.shared_experts.shared_w2_weight"},
      {"mlp.experts.down_proj", "mlp.experts.w2_weight"},
      {"mlp.down_proj.weight", "mlp.w2_md.weight"},
      {"mlp.gate.e_score_correction_bias", "mlp.gate.bias"},
      {"self_attn.q_proj", "attn.wq_du"},
      {"self_attn.k_proj", "attn.wk_dv"},
      {"self_attn.v_proj", "attn.wv_dv"},
      {"self_attn.r_proj", "attn.wr_du"},
      {"self_attn.o_proj", "attn.wo_ud"},
      {"self_attn.k_sconv.conv1d", "attn.k_sconv"},
      {"self_attn.v_sconv.conv1d", "attn.v_sconv"},
      {"self_attn.", "attn."},
      {"attn_sconv.conv1d", "attn_sconv"},
      {"mlp_sconv.conv1d", "mlp_sconv"},
      {"post_attention_layernorm", "mlp_norm"},
      {"input_layernorm", "attn_norm"},
      {"model.embed_tokens", "model.embed"},
      {"lm_head", "model.unembed"},
      {"model.", "model.llm."},
  };
  for (const auto& [from, to] : names) rename_everywhere(copy, from, to);
}

TEST_F(PublishedInkling, TheFirstReleasesNamesLoad) {
  expect_same("inkling", name_as_the_first_release);
  expect_same("inkling", [](ModelCopy& copy) {
    name_as_the_first_release(copy);
    const StoredTensor stray = copy.tensors().at("model.llm.unembed.weight");
    copy.tensors()["model.visual.layers.linear_0.weight"] = stray;
    copy.tensors()["model.audio.final_norm.weight"] = stray;
  });
  expect_refused("inkling",
                 [](ModelCopy& copy) {
                   name_as_the_first_release(copy);
                   for (auto& [name, tensor] : copy.tensors())
                     if (name.ends_with("w13_weight") || name.ends_with("w13_dn.weight"))
                       tensor.shape = Shape{tensor.shape.count()};
                 },
                 {"w13", "even number of rows"});
}

// The embedding is padded to a round number of rows; the head may be, too.
TEST_F(PublishedInkling, TokensThatPadTheVocabularyAreNotScored) {
  constexpr size_t kTokens = 300, kPadded = 320;
  const std::vector<float> stored = as_stored("inkling");
  std::vector<float> wanted;
  for (size_t row = 0; row < stored.size() / kPadded; ++row)
    wanted.insert(wanted.end(), stored.begin() + static_cast<int64_t>(row * kPadded),
                  stored.begin() + static_cast<int64_t>(row * kPadded + kTokens));
  auto unpad = [](ModelCopy& copy) { copy.config().set("unpadded_vocab_size", static_cast<int64_t>(kTokens)); };
  EXPECT_EQ(respelt("inkling", unpad), wanted);
  EXPECT_EQ(respelt("inkling",
                    [&](ModelCopy& copy) {
                      unpad(copy);
                      StoredTensor& head = copy.tensors().at("lm_head.weight");
                      head.bytes.resize(head.bytes.size() / kPadded * kTokens);
                      head.shape = Shape{static_cast<int64_t>(kTokens), head.shape[1]};
                    }),
            wanted);
  expect_refused("inkling",
                 [&](ModelCopy& copy) {
                   unpad(copy);
                   copy.tensors().erase("lm_head.weight");
                 },
                 {"lm_head.weight"});
}

}  // namespace
}  // namespace coluber
