// SPDX-License-Identifier: Apache-2.0
// LFM2, Granite 4, Bamba and Nemotron-H as GGUF.
#include <algorithm>

#include "base/error.h"
#include "formats/gguf_families.h"
#include "formats/norm_groups.h"

namespace coluber {
namespace {

using F = GgufStoredForm;

constexpr int64_t kNoLimit = 1 << 20;
constexpr double kTimeStepMin = 0.001;
constexpr int64_t kSigmoid = 2;  // expert_gating_func

std::string_view lfm2_name(const GgufExportFields&) { return "lfm2"; }
std::string_view lfm2_moe_name(const GgufExportFields&) { return "lfm2moe"; }
std::string_view bamba_name(const GgufExportFields&) { return "granitehybrid"; }
std::string_view granite_name(const GgufExportFields& f) {
  if (f.any_layer_has("ssm_in.weight")) return "granitehybrid";
  return f.any_layer_has("ffn_gate_inp.weight") ? "granitemoe" : "granite";
}
std::string_view nemotron_name(const GgufExportFields& f) {
  return f.any_layer_has("ffn_gate_inp.weight") ? "nemotron_h_moe" : "nemotron_h";
}

int64_t head_dim_of(const GgufExportFields& f, int64_t heads) {
  return f.integer({"head_dim", "attention_head_dim"}, f.integer({"hidden_size"}) / std::max<int64_t>(heads, 1));
}

void describe_lfm2(GgufExportFields& f) {
  const int64_t heads = f.integer({"num_attention_heads", "num_heads"});
  f.put("block_count", f.num_layers());
  f.put("context_length", f.integer({"max_position_embeddings"}, 128000));
  f.put("embedding_length", f.integer({"hidden_size", "block_dim"}));
  f.put("feed_forward_length",
        f.any_layer_has("ffn_up.weight") ? f.rows_of("ffn_up.weight") : f.integer({"intermediate_size"}));
  f.put("attention.head_count", heads);
  f.put_per_layer("attention.head_count_kv", "attn_q.weight", f.integer({"num_key_value_heads"}, heads));
  f.put_rope(head_dim_of(f, heads));
  f.put_real("attention.layer_norm_rms_epsilon", f.real({"norm_eps", "block_norm_eps"}, 1e-5));
  f.put("vocab_size", f.integer({"vocab_size"}));
  f.put("shortconv.l_cache", f.integer({"conv_L_cache"}, 3));
}

void describe_lfm2_moe(GgufExportFields& f) {
  describe_lfm2(f);
  f.put("expert_count", f.integer({"num_local_experts", "num_experts"}));
  f.put("expert_used_count", f.integer({"num_experts_per_tok"}));
  f.put("expert_feed_forward_length", f.integer({"moe_intermediate_size"}));
  f.put("leading_dense_block_count", f.integer({"num_dense_layers"}, 2));
  f.put("expert_gating_func", kSigmoid);
  if (const double scale = f.real({"routed_scaling_factor"}, 1); scale != 1) f.put_real("expert_weights_scale", scale);
  f.require_flag({"norm_topk_prob"}, true, true);
}

void put_mamba2(GgufExportFields& f, int64_t kernel, int64_t state, int64_t groups, int64_t heads, int64_t head_dim) {
  f.put("ssm.conv_kernel", kernel);
  f.put("ssm.state_size", state);
  f.put("ssm.group_count", groups);
  f.put("ssm.inner_size", heads * head_dim);
  f.put("ssm.time_step_rank", heads);
}

void put_granite_mamba2(GgufExportFields& f) {
  const int64_t heads = f.integer({"mamba_n_heads"}, 128);
  const int64_t inner = f.integer({"hidden_size"}) * f.integer({"mamba_expand"}, 2);
  const Json* width = f.find({"mamba_d_head"});  // a number or "auto"
  f.require_free_time_steps();
  put_mamba2(f, f.integer({"mamba_d_conv"}, 4), f.integer({"mamba_d_state"}, 256), f.integer({"mamba_n_groups"}, 1),
             heads, width != nullptr && width->is_int() ? width->as_int() : inner / std::max<int64_t>(heads, 1));
  put_norm_of_groups(f);
}

void put_granite_attention(GgufExportFields& f, int64_t heads) {
  f.put("embedding_length", f.integer({"hidden_size"}));
  f.put("attention.head_count", heads);
  f.put_per_layer("attention.head_count_kv", "attn_q.weight", f.integer({"num_key_value_heads"}, heads));
  f.put_real("attention.layer_norm_rms_epsilon", f.real({"rms_norm_eps"}, 1e-6));
  f.put("vocab_size", f.integer({"vocab_size"}));
  f.require_text({"hidden_act"}, "silu");
}

void describe_bamba(GgufExportFields& f) {
  const int64_t heads = f.integer({"num_attention_heads"}), head_dim = head_dim_of(f, heads);
  f.put("block_count", f.num_layers());
  f.put("context_length", f.integer({"max_position_embeddings"}, 262144));
  f.put("feed_forward_length", f.rows_of("ffn_up.weight"));
  put_granite_attention(f, heads);
  f.put_rope(head_dim, 0.5);
  put_granite_mamba2(f);
  f.put_flag("rope.scaling.finetuned", true);
}

void describe_granite(GgufExportFields& f) {
  const int64_t heads = f.integer({"num_attention_heads"});
  const bool experts = f.any_layer_has("ffn_gate_inp.weight"), hybrid = f.any_layer_has("ssm_in.weight");
  const bool turns = f.text({"position_embedding_type"}, "nope") == "rope";
  f.put("block_count", f.num_layers());
  f.put("context_length", turns ? f.integer({"max_position_embeddings"}, 2048) : kNoLimit);
  f.put("feed_forward_length", f.rows_of(experts ? "ffn_up_exps.weight" : "ffn_up.weight"));
  put_granite_attention(f, heads);
  f.put_rope(head_dim_of(f, heads));
  f.put("expert_count", experts ? f.integer({"num_local_experts"}) : 0);
  f.put("expert_used_count", experts ? f.integer({"num_experts_per_tok"}) : 0);
  f.put_real("attention.scale", f.real({"attention_multiplier"}, 1));
  f.put_real("embedding_scale", f.real({"embedding_multiplier"}, 1));
  f.put_real("residual_scale", f.real({"residual_multiplier"}, 1));
  f.put_real("logit_scale", f.real({"logits_scaling"}, 1));
  f.put("expert_shared_feed_forward_length", f.rows_of(experts ? "ffn_up_shexp.weight" : "ffn_up.weight"));
  if (hybrid) put_granite_mamba2(f);
  f.put_flag("rope.scaling.finetuned", turns);
}

void put_nemotron_experts(GgufExportFields& f) {
  f.put("expert_count", f.integer({"n_routed_experts"}));
  f.put("expert_used_count", f.integer({"num_experts_per_tok"}));
  f.put("expert_feed_forward_length", f.rows_of("ffn_up_exps.weight"));
  f.put("expert_shared_feed_forward_length", f.rows_of("ffn_up_shexp.weight"));
  f.put("expert_shared_count", f.integer({"n_shared_experts"}, 1));
  f.put_flag("expert_weights_norm", f.flag({"norm_topk_prob"}, true));
  f.put_real("expert_weights_scale", f.real({"routed_scaling_factor"}, 1));
  f.put("expert_group_count", f.integer({"n_group"}, 1));
  f.put("expert_group_used_count", f.integer({"topk_group"}, 1));
  if (f.any_layer_has("ffn_latent_down.weight")) f.put("moe_latent_size", f.rows_of("ffn_latent_down.weight"));
}

void describe_nemotron(GgufExportFields& f) {
  const int64_t heads = f.integer({"num_attention_heads"}), head_dim = head_dim_of(f, heads);
  const double epsilon = f.real({"layer_norm_epsilon", "norm_eps", "rms_norm_eps"}, 1e-5);
  f.put("block_count", f.num_layers());
  f.put("context_length", kNoLimit);
  f.put("embedding_length", f.integer({"hidden_size"}));
  f.put("attention.head_count", heads);
  f.put_per_layer("attention.head_count_kv", "attn_q.weight", f.integer({"num_key_value_heads"}, heads));
  f.put("attention.key_length", head_dim);
  f.put("attention.value_length", head_dim);
  f.put_real("attention.layer_norm_epsilon", epsilon);
  f.put_real("attention.layer_norm_rms_epsilon", epsilon);
  f.put("vocab_size", f.integer({"vocab_size"}));
  f.put("rope.dimension_count", head_dim);
  put_mamba2(f, f.integer({"conv_kernel", "mamba_d_conv"}, 4), f.integer({"ssm_state_size"}, 128),
             f.integer({"n_groups", "mamba_n_groups"}, 8), f.integer({"mamba_num_heads"}, 128),
             f.integer({"mamba_head_dim"}, 64));
  f.put_flag("rope.scaling.finetuned", false);
  f.require_text({"mlp_hidden_act"}, "relu2");
  f.require(f.real({"time_step_min", "mamba_dt_min"}, kTimeStepMin) == kTimeStepMin, "time_step_min other than 0.001");
  std::vector<int64_t> widths;
  for (int64_t layer = 0; layer < f.num_layers(); ++layer)
    widths.push_back(f.layer_has(layer, "ffn_up.weight")         ? f.rows_of("ffn_up.weight")
                     : f.layer_has(layer, "ffn_gate_inp.weight") ? f.rows_of("ffn_up_exps.weight")
                                                                 : 0);
  f.put_list("feed_forward_length", widths);
  if (f.any_layer_has("ffn_gate_inp.weight")) put_nemotron_experts(f);
}

const std::vector<GgufFamily::Form> kMamba2Forms = {
    {"ssm_a", F::kColumn}, {"ssm_d", F::kColumn}, {"ssm_norm.weight", F::kGroups}};

}  // namespace

void put_norm_of_groups(GgufExportFields& f) {
  const int64_t groups = f.number("ssm.group_count");
  const bool together = norms_groups_together(f.text({"transformers_version"}, ""));
  const int64_t norm_groups = f.integer({"gated_norm_groups"}, together ? 1 : groups);
  if (norm_groups == groups) return;
  f.put("ssm.norm_group_count", norm_groups);
  f.note(
      fmt::format("llama.cpp norms each of the {} groups by itself where the model's own code norms them together: "
                  "there the file gives another text than here",
                  groups));
}

std::vector<GgufFamily> gguf_hybrid_families() {
  return {
      {"lfm2", lfm2_name, describe_lfm2, {"output_norm.weight"}},
      {"lfm2_moe", lfm2_moe_name, describe_lfm2_moe, {"output_norm.weight"}},
      {"bamba", bamba_name, describe_bamba, {}, kMamba2Forms},
      {"granitemoehybrid",
       granite_name,
       describe_granite,
       {},
       kMamba2Forms,
       nullptr,
       {{"block_sparse_moe.experts.{}.w1.weight", "block_sparse_moe.input_linear.weight"},
        {"block_sparse_moe.experts.{}.w3.weight", "block_sparse_moe.input_linear.weight"},
        {"block_sparse_moe.experts.{}.w2.weight", "block_sparse_moe.output_linear.weight"}},
       {{"ffn_gate_inp.weight",
         {"ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"},
         {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"}}}},
      {"nemotron_h", nemotron_name, describe_nemotron, {}, kMamba2Forms},
  };
}

}  // namespace coluber
