// SPDX-License-Identifier: Apache-2.0
// What llama.cpp's converter makes of Mamba, Mamba-2, Jamba and Falcon-H1.
#include <algorithm>

#include "formats/gguf_config.h"

namespace coluber {
namespace {

using R = GgufRows;
using S = GgufShape;
using V = GgufValues;

void add_mamba_fields(GgufConfig& config) {
  config.copy("state_size", "ssm.state_size");
  config.copy("conv_kernel", "ssm.conv_kernel");
  config.set("expand", config.integer("ssm.inner_size") / std::max<int64_t>(config.integer("embedding_length"), 1));
  config.copy_real("layer_norm_epsilon", "attention.layer_norm_rms_epsilon");
  config.set("use_conv_bias", config.any_layer_has("ssm_conv1d.bias"));
  config.set("use_bias", config.any_layer_has("ssm_in.bias"));
}

std::string mamba_config(const GgufFile& file) {
  const bool falcon = file.boolean("mamba.ssm.dt_b_c_rms").value_or(false);
  GgufConfig config(file, falcon ? "falcon_mamba" : "mamba");
  add_mamba_fields(config);
  config.copy("intermediate_size", "ssm.inner_size");
  config.copy("time_step_rank", "ssm.time_step_rank");
  return config.text();
}

std::string mamba2_config(const GgufFile& file) {
  GgufConfig config(file, "mamba2");
  add_mamba_fields(config);
  config.set("num_heads", config.sizes().num_v_heads);
  config.set("head_dim", config.sizes().head_v_dim);
  config.copy("n_groups", "ssm.group_count");
  config.copy_if_there("gated_norm_groups", "ssm.norm_group_count");
  return config.text();
}

// Jamba's config says "every so many layers, from that one on" where the file has layers of any kind.
void set_period(GgufConfig& config, const std::vector<bool>& chosen, const std::string& what) {
  const auto count = static_cast<int64_t>(chosen.size());
  int64_t first = 0, period = 1;
  while (first < count && !chosen[static_cast<size_t>(first)]) ++first;
  while (first + period < count && !chosen[static_cast<size_t>(first + period)]) ++period;
  if (first + period >= count) period = std::max<int64_t>(count, first + 1);
  for (int64_t i = 0; i < count; ++i) {
    if (chosen[static_cast<size_t>(i)] != (i >= first && (i - first) % period == 0) ||
        (first >= period && first < count))
      config.refuse(fmt::format("layer {} breaks the pattern of the layers of {}; expected every {}th from layer {} on",
                                i, what, period, first));
  }
  config.set((what + "_layer_period").c_str(), period);
  config.set((what + "_layer_offset").c_str(), std::min(first, period - 1));
}

std::string jamba_config(const GgufFile& file) {
  GgufConfig config(file, "jamba");
  config.add_attention();
  config.copy("intermediate_size", "feed_forward_length");
  config.copy_real("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  config.copy("mamba_d_state", "ssm.state_size");
  config.copy("mamba_d_conv", "ssm.conv_kernel");
  config.copy("mamba_dt_rank", "ssm.time_step_rank");
  config.set("mamba_expand",
             config.integer("ssm.inner_size") / std::max<int64_t>(config.integer("embedding_length"), 1));
  config.set("mamba_conv_bias", config.any_layer_has("ssm_conv1d.bias"));
  config.set("mamba_proj_bias", config.any_layer_has("ssm_in.bias"));
  config.set("mamba_inner_layernorms", config.any_layer_has("ssm_dt_norm.weight"));
  std::vector<bool> attention, experts;
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    attention.push_back(config.layer_has(i, "attn_q.weight"));
    experts.push_back(config.layer_has(i, "ffn_gate_inp.weight"));
  }
  set_period(config, attention, "attn");
  const bool any = config.any_layer_has("ffn_gate_inp.weight");
  if (any) set_period(config, experts, "expert");
  config.set("num_experts", any ? config.integer("expert_count") : 1);
  config.set("num_experts_per_tok", any ? config.integer("expert_used_count") : 1);
  return config.text();
}

// The multipliers are folded into the weights.
std::string falcon_h1_config(const GgufFile& file) {
  GgufConfig config(file, "falcon_h1");
  config.add_attention();
  config.add_mamba2();
  config.add_rope();
  config.copy("intermediate_size", "feed_forward_length");
  config.copy("mamba_d_ssm", "ssm.inner_size");
  config.copy_real("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  config.set("mamba_rms_norm", config.any_layer_has("ssm_norm.weight"));
  config.set("mamba_norm_before_gate", false);
  config.set("projectors_bias", config.any_layer_has("ssm_out.bias"));
  config.set("mlp_bias", config.any_layer_has("ffn_up.bias"));
  return config.text();
}

const std::vector<GgufTensorRule> kMambaWhole = {
    {"token_embd.weight", "backbone.embeddings.weight"},
    {"output_norm.weight", "backbone.norm_f.weight"},
    {"output.weight", "lm_head.weight"},
};

const std::vector<GgufTensorRule> kFinalLayernorm = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.final_layernorm.weight"},
    {"output.weight", "lm_head.weight"},
    {"rope_freqs.weight", ""},
};

const std::vector<GgufTensorRule> kJambaLayer = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "pre_ff_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ssm_in.weight", "mamba.in_proj.weight"},
    {"ssm_in.bias", "mamba.in_proj.bias"},
    {"ssm_conv1d.weight", "mamba.conv1d.weight", S::kConv},
    {"ssm_conv1d.bias", "mamba.conv1d.bias"},
    {"ssm_x.weight", "mamba.x_proj.weight"},
    {"ssm_dt.weight", "mamba.dt_proj.weight"},
    {"ssm_dt.bias", "mamba.dt_proj.bias"},
    {"ssm_dt_norm.weight", "mamba.dt_layernorm.weight"},
    {"ssm_b_norm.weight", "mamba.b_layernorm.weight"},
    {"ssm_c_norm.weight", "mamba.c_layernorm.weight"},
    {"ssm_a", "mamba.A_log", S::kAsStored, V::kLogOfMinus},
    {"ssm_d", "mamba.D"},
    {"ssm_out.weight", "mamba.out_proj.weight"},
    {"ssm_out.bias", "mamba.out_proj.bias"},
    {"ffn_gate.weight", "feed_forward.gate_proj.weight"},
    {"ffn_up.weight", "feed_forward.up_proj.weight"},
    {"ffn_down.weight", "feed_forward.down_proj.weight"},
    {"ffn_gate_inp.weight", "feed_forward.router.weight"},
    {"ffn_gate_exps.weight", "feed_forward.experts.{}.gate_proj.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_up_exps.weight", "feed_forward.experts.{}.up_proj.weight", S::kAsStored, V::kAsStored, R::kExperts},
    {"ffn_down_exps.weight", "feed_forward.experts.{}.down_proj.weight", S::kAsStored, V::kAsStored, R::kExperts},
};

const std::vector<GgufTensorRule> kFalconH1Layer = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm", "pre_ff_layernorm.weight"},
    {"ffn_norm.weight", "pre_ff_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
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
    {"ffn_gate.weight", "feed_forward.gate_proj.weight"},
    {"ffn_gate.bias", "feed_forward.gate_proj.bias"},
    {"ffn_up.weight", "feed_forward.up_proj.weight"},
    {"ffn_up.bias", "feed_forward.up_proj.bias"},
    {"ffn_down.weight", "feed_forward.down_proj.weight"},
    {"ffn_down.bias", "feed_forward.down_proj.bias"},
};

}  // namespace

std::vector<GgufArchitecture> gguf_mamba_architectures() {
  return {
      {"mamba",
       "backbone.layers.",
       kMambaWhole,
       {{"attn_norm.weight", "norm.weight"},
        {"ssm_in.weight", "mixer.in_proj.weight"},
        {"ssm_in.bias", "mixer.in_proj.bias"},
        {"ssm_conv1d.weight", "mixer.conv1d.weight", S::kConv},
        {"ssm_conv1d.bias", "mixer.conv1d.bias"},
        {"ssm_x.weight", "mixer.x_proj.weight"},
        {"ssm_dt.weight", "mixer.dt_proj.weight"},
        {"ssm_dt.bias", "mixer.dt_proj.bias"},
        {"ssm_a", "mixer.A_log", S::kAsStored, V::kLogOfMinus},
        {"ssm_d", "mixer.D"},
        {"ssm_out.weight", "mixer.out_proj.weight"},
        {"ssm_out.bias", "mixer.out_proj.bias"}},
       mamba_config},
      {"mamba2",
       "backbone.layers.",
       kMambaWhole,
       {{"attn_norm.weight", "norm.weight"},
        {"ssm_in.weight", "mixer.in_proj.weight"},
        {"ssm_in.bias", "mixer.in_proj.bias"},
        {"ssm_conv1d.weight", "mixer.conv1d.weight", S::kConv},
        {"ssm_conv1d.bias", "mixer.conv1d.bias"},
        {"ssm_dt.bias", "mixer.dt_bias"},
        {"ssm_a", "mixer.A_log", S::kFlat, V::kLogOfMinus},
        {"ssm_d", "mixer.D", S::kFlat},
        {"ssm_norm.weight", "mixer.norm.weight", S::kFlat},
        {"ssm_out.weight", "mixer.out_proj.weight"},
        {"ssm_out.bias", "mixer.out_proj.bias"}},
       mamba2_config},
      {"jamba", "model.layers.", kFinalLayernorm, kJambaLayer, jamba_config},
      {"falcon-h1", "model.layers.", kFinalLayernorm, kFalconH1Layer, falcon_h1_config},
  };
}

}  // namespace coluber
