// SPDX-License-Identifier: Apache-2.0
// What llama.cpp's converter makes of LFM2, Granite 4, Bamba and Nemotron-H.
#include <algorithm>
#include <cmath>

#include "formats/gguf_config.h"

namespace coluber {
namespace {

using R = GgufRows;
using S = GgufShape;
using V = GgufValues;

// -------- LFM2, dense and with experts

std::string lfm2_config(const GgufFile& file) {
  const bool moe = file.text("general.architecture") == "lfm2moe";
  GgufConfig config(file, moe ? "lfm2_moe" : "lfm2");
  if (config.integer("attention.sliding_window", 0) > 0)
    config.refuse("its attention looks back only so far (attention.sliding_window), which is not supported");
  config.add_attention();
  config.add_rope();
  config.copy("intermediate_size", "feed_forward_length");
  config.set("block_auto_adjust_ff_dim", false);
  config.copy("conv_L_cache", "shortconv.l_cache");
  config.copy_real("norm_eps", "attention.layer_norm_rms_epsilon");
  config.set("conv_bias", config.any_layer_has("shortconv.conv.bias"));
  config.set("layer_types",
             config.layer_list({{"attn_q.weight", "full_attention"}, {"shortconv.conv.weight", "conv"}}));
  if (!moe) return config.text();
  config.copy("num_dense_layers", "leading_dense_block_count");
  config.copy("moe_intermediate_size", "expert_feed_forward_length");
  config.copy("num_experts", "expert_count");
  config.copy("num_experts_per_tok", "expert_used_count");
  config.copy_real("routed_scaling_factor", "expert_weights_scale");
  config.set("use_expert_bias", config.any_layer_has("exp_probs_b.bias"));
  return config.text();
}

const std::vector<GgufTensorRule> kLfm2Whole = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"token_embd_norm.weight", "model.embedding_norm.weight"},
    {"output_norm.weight", "model.embedding_norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"rope_freqs.weight", ""},
};

const std::vector<GgufTensorRule> kLfm2Layer = {
    {"attn_norm.weight", "operator_norm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.out_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_layernorm.weight"},
    {"attn_k_norm.weight", "self_attn.k_layernorm.weight"},
    {"shortconv.conv.weight", "conv.conv.weight", S::kConv},
    {"shortconv.conv.bias", "conv.conv.bias"},
    {"shortconv.in_proj.weight", "conv.in_proj.weight"},
    {"shortconv.in_proj.bias", "conv.in_proj.bias"},
    {"shortconv.out_proj.weight", "conv.out_proj.weight"},
    {"shortconv.out_proj.bias", "conv.out_proj.bias"},
    {"ffn_norm.weight", "ffn_norm.weight"},
    {"ffn_gate.weight", "feed_forward.w1.weight"},
    {"ffn_up.weight", "feed_forward.w3.weight"},
    {"ffn_down.weight", "feed_forward.w2.weight"},
    {"ffn_gate_inp.weight", "feed_forward.gate.weight"},
    {"exp_probs_b.bias", "feed_forward.expert_bias"},
    {"ffn_gate_exps.weight", "feed_forward.experts.{}.w1.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_up_exps.weight", "feed_forward.experts.{}.w3.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_down_exps.weight", "feed_forward.experts.{}.w2.weight", S::kAsStored, V::kAsStored, R::kExperts},
};

// -------- Granite 4 and Bamba

// Bamba goes by Granite's name; its attention turns, and it has none of the multipliers.
bool is_bamba(const GgufFile& file) {
  return file.boolean("granitehybrid.rope.scaling.finetuned").value_or(true) &&
         !file.has("granitehybrid.embedding_scale") && !file.has("granitehybrid.residual_scale") &&
         !file.has("granitehybrid.attention.scale") && !file.has("granitehybrid.logit_scale");
}

std::string bamba_config(const GgufFile& file) {
  GgufConfig config(file, "bamba");
  config.add_attention();
  config.add_mamba2();
  config.add_rope();
  config.copy("intermediate_size", "feed_forward_length");
  config.copy_real("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  config.set("layer_types", config.layer_list({{"attn_q.weight", "attention"}, {"ssm_in.weight", "mamba"}}));
  return config.text();
}

void add_granite_scales(GgufConfig& config) {
  const int64_t heads = std::max<int64_t>(config.sizes().num_heads, 1);
  const int64_t head_dim = config.integer("attention.key_length", config.integer("embedding_length") / heads);
  // Without a word llama.cpp scales by the head's width, which no published Granite does.
  config.set("attention_multiplier", 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(head_dim, 1))));
  if (config.real("attention.scale").value_or(0) != 0) config.copy_real("attention_multiplier", "attention.scale");
  config.copy_real("embedding_multiplier", "embedding_scale");
  config.copy_real("residual_multiplier", "residual_scale");
  config.copy_real("logits_scaling", "logit_scale");
}

// The models of attention alone have an architecture of their own, where there is always rotation.
std::string granite_config(const GgufFile& file) {
  const bool hybrid = file.text("general.architecture") == "granitehybrid";
  GgufConfig config(file, "granitemoehybrid");
  config.add_attention();
  if (hybrid) config.add_mamba2();
  add_granite_scales(config);
  config.copy_real("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  const bool turns = config.flag("rope.scaling.finetuned", true);
  if (turns) config.add_rope();
  config.set("position_embedding_type", turns ? "rope" : "nope");
  const bool experts = config.any_layer_has("ffn_gate_inp.weight");
  config.set("num_local_experts", experts ? config.integer("expert_count") : 0);
  config.set("num_experts_per_tok", experts ? config.integer("expert_used_count") : 0);
  config.copy("intermediate_size", "feed_forward_length");
  config.set("shared_intermediate_size", config.rows_of(experts ? "ffn_gate_shexp.weight" : "ffn_gate.weight"));
  config.set("layer_types", config.layer_list({{"attn_q.weight", "attention"}, {"ssm_in.weight", "mamba"}}));
  return config.text();
}

const std::vector<GgufTensorRule> kGraniteWhole = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"rope_freqs.weight", ""},
};

// The halves of attention and of Mamba-2, which both families name alike.
const std::vector<GgufTensorRule> kGraniteMixers = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight", S::kAsStored, V::kAsStored, R::kQueryPairs},
    {"attn_q.bias", "self_attn.q_proj.bias", S::kAsStored, V::kAsStored, R::kQueryPairs},
    {"attn_k.weight", "self_attn.k_proj.weight", S::kAsStored, V::kAsStored, R::kKeyPairs},
    {"attn_k.bias", "self_attn.k_proj.bias", S::kAsStored, V::kAsStored, R::kKeyPairs},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"ssm_in.weight", "mamba.in_proj.weight"},
    {"ssm_in.bias", "mamba.in_proj.bias"},
    {"ssm_conv1d.weight", "mamba.conv1d.weight", S::kConv},
    {"ssm_conv1d.bias", "mamba.conv1d.bias"},
    {"ssm_dt.bias", "mamba.dt_bias"},
    {"ssm_a", "mamba.A_log", S::kFlat, V::kLogOfMinus},
    {"ssm_d", "mamba.D", S::kFlat},
    {"ssm_norm.weight", "mamba.norm.weight", S::kFlat},
    {"ssm_out.weight", "mamba.out_proj.weight"},
    {"ssm_out.bias", "mamba.out_proj.bias"},
};

std::vector<GgufTensorRule> with_mixers(const std::vector<GgufTensorRule>& rules) {
  std::vector<GgufTensorRule> all = kGraniteMixers;
  all.insert(all.end(), rules.begin(), rules.end());
  return all;
}

std::vector<GgufTensorRule> granite_layer() {
  return with_mixers({
      {"ffn_norm.weight", "post_attention_layernorm.weight"},
      {"ffn_gate.weight", "shared_mlp.input_linear.weight", S::kAsStored, V::kAsStored, R::kAppended},
      {"ffn_up.weight", "shared_mlp.input_linear.weight", S::kAsStored, V::kAsStored, R::kAppended},
      {"ffn_down.weight", "shared_mlp.output_linear.weight"},
      {"ffn_gate_shexp.weight", "shared_mlp.input_linear.weight", S::kAsStored, V::kAsStored, R::kAppended},
      {"ffn_up_shexp.weight", "shared_mlp.input_linear.weight", S::kAsStored, V::kAsStored, R::kAppended},
      {"ffn_down_shexp.weight", "shared_mlp.output_linear.weight"},
      {"ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"},
      {"ffn_gate_exps.weight", "block_sparse_moe.experts.{}.w1.weight", S::kAsStored, V::kAsStored, R::kExperts},
      {"ffn_up_exps.weight", "block_sparse_moe.experts.{}.w3.weight", S::kAsStored, V::kAsStored, R::kExperts},
      {"ffn_down_exps.weight", "block_sparse_moe.experts.{}.w2.weight", S::kAsStored, V::kAsStored, R::kExperts},
  });
}

// -------- Nemotron-H, dense and with experts

std::string nemotron_config(const GgufFile& file) {
  GgufConfig config(file, "nemotron_h");
  config.add_attention();
  config.set("mamba_num_heads", config.sizes().num_v_heads);
  config.set("mamba_head_dim", config.sizes().head_v_dim);
  config.copy("ssm_state_size", "ssm.state_size");
  config.copy("n_groups", "ssm.group_count");
  config.copy("conv_kernel", "ssm.conv_kernel");
  config.set("use_conv_bias", config.any_layer_has("ssm_conv1d.bias"));
  config.set("use_bias", config.any_layer_has("ssm_in.bias"));
  config.set("mlp_bias", config.any_layer_has("ffn_up.bias") || config.any_layer_has("ffn_up_shexp.bias") ||
                             config.any_layer_has("ffn_latent_down.bias"));
  config.copy_real("layer_norm_epsilon", "attention.layer_norm_epsilon");
  config.copy_real("layer_norm_epsilon", "attention.layer_norm_rms_epsilon");
  config.set("layers_block_type", config.layer_list({{"ssm_in.weight", "mamba"},
                                                     {"attn_q.weight", "attention"},
                                                     {"ffn_up.weight", "mlp"},
                                                     {"ffn_gate_inp.weight", "moe"}}));
  if (const int64_t width = config.rows_of("ffn_up.weight"); width > 0) config.set("intermediate_size", width);
  if (!config.any_layer_has("ffn_gate_inp.weight")) return config.text();
  config.copy("n_routed_experts", "expert_count");
  config.copy("num_experts_per_tok", "expert_used_count");
  config.copy("moe_intermediate_size", "expert_feed_forward_length");
  config.copy_if_there("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length");
  config.set("n_shared_experts", config.any_layer_has("ffn_up_shexp.weight") ? 1 : 0);
  config.copy_if_there("moe_latent_size", "moe_latent_size");
  config.copy_if_there("n_group", "expert_group_count");
  config.copy_if_there("topk_group", "expert_group_used_count");
  config.set("norm_topk_prob", config.flag("expert_weights_norm", false));
  config.copy_real("routed_scaling_factor", "expert_weights_scale");
  return config.text();
}

const std::vector<GgufTensorRule> kNemotronWhole = {
    {"token_embd.weight", "backbone.embeddings.weight"},
    {"output_norm.weight", "backbone.norm_f.weight"},
    {"output.weight", "lm_head.weight"},
};

const std::vector<GgufTensorRule> kNemotronLayer = {
    {"attn_norm.weight", "norm.weight"},
    {"attn_q.weight", "mixer.q_proj.weight"},
    {"attn_q.bias", "mixer.q_proj.bias"},
    {"attn_k.weight", "mixer.k_proj.weight"},
    {"attn_k.bias", "mixer.k_proj.bias"},
    {"attn_v.weight", "mixer.v_proj.weight"},
    {"attn_v.bias", "mixer.v_proj.bias"},
    {"attn_output.weight", "mixer.o_proj.weight"},
    {"attn_output.bias", "mixer.o_proj.bias"},
    {"ssm_in.weight", "mixer.in_proj.weight"},
    {"ssm_in.bias", "mixer.in_proj.bias"},
    {"ssm_conv1d.weight", "mixer.conv1d.weight", S::kConv},
    {"ssm_conv1d.bias", "mixer.conv1d.bias"},
    {"ssm_dt.bias", "mixer.dt_bias"},
    {"ssm_a", "mixer.A_log", S::kFlat, V::kLogOfMinus},
    {"ssm_d", "mixer.D", S::kFlat},
    {"ssm_norm.weight", "mixer.norm.weight", S::kFlat},
    {"ssm_out.weight", "mixer.out_proj.weight"},
    {"ssm_out.bias", "mixer.out_proj.bias"},
    {"ffn_up.weight", "mixer.up_proj.weight"},
    {"ffn_up.bias", "mixer.up_proj.bias"},
    {"ffn_down.weight", "mixer.down_proj.weight"},
    {"ffn_down.bias", "mixer.down_proj.bias"},
    {"ffn_gate_inp.weight", "mixer.gate.weight"},
    {"exp_probs_b.bias", "mixer.gate.e_score_correction_bias"},
    {"ffn_up_exps.weight", "mixer.experts.{}.up_proj.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_down_exps.weight", "mixer.experts.{}.down_proj.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_latent_down.weight", "mixer.fc1_latent_proj.weight"},
    {"ffn_latent_down.bias", "mixer.fc1_latent_proj.bias"},
    {"ffn_latent_up.weight", "mixer.fc2_latent_proj.weight"},
    {"ffn_latent_up.bias", "mixer.fc2_latent_proj.bias"},
    {"ffn_up_shexp.weight", "mixer.shared_experts.up_proj.weight"},
    {"ffn_up_shexp.bias", "mixer.shared_experts.up_proj.bias"},
    {"ffn_down_shexp.weight", "mixer.shared_experts.down_proj.weight"},
    {"ffn_down_shexp.bias", "mixer.shared_experts.down_proj.bias"},
};

std::vector<GgufTensorRule> bamba_layer() {
  return with_mixers({
      {"ffn_norm.weight", "pre_ff_layernorm.weight"},
      {"ffn_gate.weight", "feed_forward.gate_proj.weight"},
      {"ffn_up.weight", "feed_forward.up_proj.weight"},
      {"ffn_down.weight", "feed_forward.down_proj.weight"},
  });
}

const std::vector<GgufTensorRule> kBambaWhole = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.final_layernorm.weight"},
    {"output.weight", "lm_head.weight"},
};

}  // namespace

std::vector<GgufArchitecture> gguf_hybrid_architectures() {
  return {
      {"lfm2", "model.layers.", kLfm2Whole, kLfm2Layer, lfm2_config},
      {"lfm2moe", "model.layers.", kLfm2Whole, kLfm2Layer, lfm2_config},
      {"granitehybrid", "model.layers.", kBambaWhole, bamba_layer(), bamba_config, is_bamba},
      {"granitehybrid", "model.layers.", kGraniteWhole, granite_layer(), granite_config},
      {"granite", "model.layers.", kGraniteWhole, granite_layer(), granite_config},
      {"granitemoe", "model.layers.", kGraniteWhole, granite_layer(), granite_config},
      {"nemotron_h", "backbone.layers.", kNemotronWhole, kNemotronLayer, nemotron_config},
      {"nemotron_h_moe", "backbone.layers.", kNemotronWhole, kNemotronLayer, nemotron_config},
  };
}

}  // namespace coluber
