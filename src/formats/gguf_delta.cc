// SPDX-License-Identifier: Apache-2.0
// What llama.cpp's converter makes of Qwen3-Next, Qwen3.5, Kimi Linear and MiniMax-Text-01.
#include <algorithm>

#include "formats/gguf_config.h"

namespace coluber {
namespace {

using R = GgufRows;
using S = GgufShape;
using V = GgufValues;

// -------- Qwen3-Next and Qwen3.5

void add_qwen(GgufConfig& config) {
  const GgufSizes& sizes = config.sizes();
  config.add_attention();
  config.add_rope();
  config.copy_real("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  config.set("linear_num_key_heads", sizes.num_k_heads);
  config.set("linear_num_value_heads", sizes.num_v_heads);
  config.set("linear_key_head_dim", sizes.head_k_dim);
  config.set("linear_value_head_dim", sizes.head_v_dim);
  config.copy("linear_conv_kernel_dim", "ssm.conv_kernel");
  config.set("layer_types",
             config.layer_list({{"ssm_conv1d.weight", "linear_attention"}, {"attn_q.weight", "full_attention"}}));
}

void add_qwen_experts(GgufConfig& config) {
  config.copy("num_experts", "expert_count");
  config.copy("num_experts_per_tok", "expert_used_count");
  config.copy("moe_intermediate_size", "expert_feed_forward_length");
  const int64_t shared = config.rows_of("ffn_gate_shexp.weight");
  config.set("shared_expert_intermediate_size", config.integer("expert_shared_feed_forward_length", shared));
}

std::string qwen3_next_config(const GgufFile& file) {
  GgufConfig config(file, "qwen3_next");
  add_qwen(config);
  add_qwen_experts(config);
  return config.text();
}

std::string qwen35_config(const GgufFile& file) {
  GgufConfig config(file, "qwen3_5_text");
  add_qwen(config);
  config.copy("intermediate_size", "feed_forward_length");
  return config.text();
}

std::string qwen35moe_config(const GgufFile& file) {
  GgufConfig config(file, "qwen3_5_moe_text");
  add_qwen(config);
  add_qwen_experts(config);
  return config.text();
}

// Early files keep the projections of a key head together, as the checkpoint does.
bool is_by_key_head(const GgufFile& file) { return GgufConfig(file, "qwen3_next").any_layer_has("ssm_in.weight"); }

const std::vector<GgufTensorRule> kQwenWhole = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight", S::kAsStored, V::kMinusOne},
    {"output.weight", "lm_head.weight"},
    {"rope_freqs.weight", ""},
};

const std::vector<GgufTensorRule> kQwenLayer = {
    {"attn_norm.weight", "input_layernorm.weight", S::kAsStored, V::kMinusOne},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", S::kAsStored, V::kMinusOne},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", S::kAsStored, V::kMinusOne},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", S::kAsStored, V::kMinusOne},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_exps.weight", "mlp.experts.{}.gate_proj.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_up_exps.weight", "mlp.experts.{}.up_proj.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_gate_up_exps.weight", "mlp.experts.{}.gate_proj.weight", S::kAsStored, V::kAsStored, R::kExperts, 0, 2},
    {"ffn_gate_up_exps.weight", "mlp.experts.{}.up_proj.weight", S::kAsStored, V::kAsStored, R::kExperts, 1, 2},
    {"ffn_down_exps.weight", "mlp.experts.{}.down_proj.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", S::kRow},
};

std::vector<GgufTensorRule> with_qwen_layer(const std::vector<GgufTensorRule>& linear) {
  std::vector<GgufTensorRule> all = kQwenLayer;
  all.insert(all.end(), linear.begin(), linear.end());
  return all;
}

std::vector<GgufTensorRule> qwen3_next_layer(bool by_key_head) {
  std::vector<GgufTensorRule> linear = {
      {"ssm_conv1d.weight", "linear_attn.conv1d.weight", S::kConv},
      {"ssm_a", "linear_attn.A_log", S::kFlat, V::kLogOfMinus},
      {"ssm_dt.bias", "linear_attn.dt_bias"},
      {"ssm_out.weight", "linear_attn.out_proj.weight"},
  };
  if (by_key_head) {
    linear.push_back({"ssm_in.weight", "linear_attn.in_proj_qkvz.weight"});
    linear.push_back({"ssm_ba.weight", "linear_attn.in_proj_ba.weight"});
  } else {
    linear.push_back({"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"});
    linear.push_back({"attn_gate.weight", "linear_attn.in_proj_z.weight"});
    for (const int part : {0, 1})
      linear.push_back({"ssm_ba.weight", part == 0 ? "linear_attn.in_proj_b.weight" : "linear_attn.in_proj_a.weight",
                        S::kAsStored, V::kAsStored, R::kPartOfKeyHeads, part, 2});
  }
  return with_qwen_layer(linear);
}

std::vector<GgufTensorRule> qwen35_layer() {
  return with_qwen_layer({
      {"ssm_conv1d.weight", "linear_attn.conv1d.weight", S::kConv, V::kAsStored, R::kTiledTail},
      {"ssm_a", "linear_attn.A_log", S::kFlat, V::kLogOfMinus, R::kTiledHeads},
      {"ssm_dt.bias", "linear_attn.dt_bias", S::kAsStored, V::kAsStored, R::kTiledHeads},
      {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight", S::kAsStored, V::kAsStored, R::kTiledTail},
      {"attn_gate.weight", "linear_attn.in_proj_z.weight", S::kAsStored, V::kAsStored, R::kTiledRows},
      {"ssm_beta.weight", "linear_attn.in_proj_b.weight", S::kAsStored, V::kAsStored, R::kTiledHeads},
      {"ssm_alpha.weight", "linear_attn.in_proj_a.weight", S::kAsStored, V::kAsStored, R::kTiledHeads},
      {"ssm_out.weight", "linear_attn.out_proj.weight", S::kAsStored, V::kAsStored, R::kTiledColumns},
  });
}

// -------- Kimi Linear

void add_kimi_layers(GgufConfig& config) {
  Json::Array full, delta;
  const auto kinds = config.layer_kinds({{"attn_kv_a_mqa.weight", "full"}, {"ssm_f_a.weight", "delta"}});
  for (size_t i = 0; i < kinds.size(); ++i)
    (kinds[i] == "full" ? full : delta).emplace_back(static_cast<int64_t>(i + 1));
  const int64_t head_dim = config.integer("kda.head_dim");
  Json linear{Json::Object{}};
  linear.set("full_attn_layers", std::move(full));
  linear.set("kda_layers", std::move(delta));
  linear.set("head_dim", head_dim);
  linear.set("num_heads", config.rows_of("ssm_f_b.weight") / std::max<int64_t>(head_dim, 1));
  linear.set("short_conv_kernel_size", config.integer("ssm.conv_kernel"));
  config.set("linear_attn_config", std::move(linear));
}

std::string kimi_config(const GgufFile& file) {
  GgufConfig config(file, "kimi_linear");
  const int64_t rotated = config.integer("rope.dimension_count"), key = config.integer("attention.key_length_mla");
  if (rotated > key) config.refuse("expected kimi-linear.rope.dimension_count to be at most attention.key_length_mla");
  config.set("num_attention_heads", config.sizes().num_heads);
  config.set("num_key_value_heads", config.sizes().num_heads);
  config.copy_if_there("model_max_length", "context_length");
  config.copy("intermediate_size", "feed_forward_length");
  config.copy_real("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  config.copy("kv_lora_rank", "attention.kv_lora_rank");
  config.copy_if_there("q_lora_rank", "attention.q_lora_rank");
  config.set("qk_rope_head_dim", rotated);
  config.set("qk_nope_head_dim", key - rotated);
  config.copy("v_head_dim", "attention.value_length_mla");
  add_kimi_layers(config);
  config.set("mlp_layer_types", config.layer_list({{"ffn_gate_inp.weight", "sparse"}, {"ffn_gate.weight", "dense"}}));
  if (!config.any_layer_has("ffn_gate_inp.weight")) return config.text();
  config.copy("num_experts", "expert_count");
  config.copy("num_experts_per_token", "expert_used_count");
  config.copy("moe_intermediate_size", "expert_feed_forward_length");
  config.copy_if_there("num_shared_experts", "expert_shared_count");
  config.copy_if_there("num_expert_group", "expert_group_count");
  config.copy_if_there("topk_group", "expert_group_used_count");
  config.copy_real("routed_scaling_factor", "expert_weights_scale");
  config.set("moe_renormalize", config.flag("expert_weights_norm", true));
  return config.text();
}

const std::vector<GgufTensorRule> kKimiWhole = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

const std::vector<GgufTensorRule> kKimiLayer = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ssm_conv1d_q.weight", "self_attn.q_conv1d.weight", S::kConv},
    {"ssm_conv1d_k.weight", "self_attn.k_conv1d.weight", S::kConv},
    {"ssm_conv1d_v.weight", "self_attn.v_conv1d.weight", S::kConv},
    {"ssm_a", "self_attn.A_log", S::kPerHead, V::kLogOfMinus},
    {"ssm_dt.bias", "self_attn.dt_bias"},
    {"ssm_beta.weight", "self_attn.b_proj.weight"},
    {"ssm_f_a.weight", "self_attn.f_a_proj.weight"},
    {"ssm_f_b.weight", "self_attn.f_b_proj.weight"},
    {"ssm_g_a.weight", "self_attn.g_a_proj.weight"},
    {"ssm_g_b.weight", "self_attn.g_b_proj.weight"},
    {"ssm_norm.weight", "self_attn.o_norm.weight"},
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight"},
    {"attn_k_b.weight", "self_attn.kv_b_proj.weight", S::kAsStored, V::kAsStored, R::kLatentKeys},
    {"attn_v_b.weight", "self_attn.kv_b_proj.weight", S::kAsStored, V::kAsStored, R::kLatentValues},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight"},
    {"exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"},
    {"ffn_gate_exps.weight", "block_sparse_moe.experts.{}.w1.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_up_exps.weight", "block_sparse_moe.experts.{}.w3.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_down_exps.weight", "block_sparse_moe.experts.{}.w2.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_gate_shexp.weight", "block_sparse_moe.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "block_sparse_moe.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "block_sparse_moe.shared_experts.down_proj.weight"},
};

// -------- MiniMax-Text-01 and M1

// One factor stands for all that scale a residual; those of what is added to it are 1, and the residual is the normed
// input.
std::string minimax_config(const GgufFile& file) {
  GgufConfig config(file, "minimax_text_01");
  config.add_attention();
  config.add_rope();
  config.copy("intermediate_size", "feed_forward_length");
  config.copy("num_local_experts", "expert_count");
  config.copy("num_experts_per_tok", "expert_used_count");
  config.copy_real("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  config.set("postnorm", true);
  for (const char* field :
       {"layernorm_linear_attention_alpha", "layernorm_full_attention_alpha", "layernorm_mlp_alpha"})
    config.copy_real(field, "residual_scale");
  Json::Array types;
  for (const std::string& kind : config.layer_kinds({{"attn_qkv.weight", "linear"}, {"attn_q.weight", "full"}}))
    types.emplace_back(kind == "linear" ? 0 : 1);
  config.set("attn_type_list", std::move(types));
  return config.text();
}

// The output's projection has one name here and two in the checkpoint, by the layer's kind.
const std::vector<GgufTensorRule> kMiniMaxLayer = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_qkv.weight", "self_attn.qkv_proj.weight"},
    {"attn_gate.weight", "self_attn.output_gate.weight"},
    {"attn_norm_2.weight", "self_attn.norm.weight"},
    {"attn_output.weight", "self_attn.out_proj.weight", S::kAsStored, V::kAsStored, R::kAll, 0, 1, "attn_qkv.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight", S::kAsStored, V::kAsStored, R::kAll, 0, 1, "attn_q.weight"},
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight"},
    {"ffn_gate_exps.weight", "block_sparse_moe.experts.{}.w1.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_up_exps.weight", "block_sparse_moe.experts.{}.w3.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_down_exps.weight", "block_sparse_moe.experts.{}.w2.weight", S::kAsStored, V::kAsStored, R::kExperts},
};

}  // namespace

std::vector<GgufArchitecture> gguf_delta_architectures() {
  return {
      {"qwen3next", "model.layers.", kQwenWhole, qwen3_next_layer(true), qwen3_next_config, is_by_key_head},
      {"qwen3next", "model.layers.", kQwenWhole, qwen3_next_layer(false), qwen3_next_config},
      {"qwen35", "model.layers.", kQwenWhole, qwen35_layer(), qwen35_config},
      {"qwen35moe", "model.layers.", kQwenWhole, qwen35_layer(), qwen35moe_config},
      {"kimi-linear", "model.layers.", kKimiWhole, kKimiLayer, kimi_config},
      {"minimax-01", "model.layers.", kKimiWhole, kMiniMaxLayer, minimax_config},
  };
}

}  // namespace coluber
