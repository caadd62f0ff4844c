// SPDX-License-Identifier: Apache-2.0
// Qwen3-Next, Qwen3.5, Kimi Linear and MiniMax-Text-01 as GGUF; and the table of all families.
#include <algorithm>

#include "base/error.h"
#include "formats/gguf_families.h"

namespace coluber {
namespace {

using F = GgufStoredForm;

std::string_view qwen3_next_name(const GgufExportFields&) { return "qwen3next"; }
std::string_view qwen35_name(const GgufExportFields&) { return "qwen35"; }
std::string_view qwen35moe_name(const GgufExportFields&) { return "qwen35moe"; }
std::string_view kimi_name(const GgufExportFields&) { return "kimi-linear"; }
std::string_view minimax_name(const GgufExportFields&) { return "minimax-01"; }

void put_base(GgufExportFields& f, int64_t context) {
  f.put("block_count", f.num_layers());
  f.put("context_length", context);
  f.put("embedding_length", f.integer({"hidden_size"}));
  f.put("vocab_size", f.integer({"vocab_size"}));
  f.put_real("attention.layer_norm_rms_epsilon", f.real({"rms_norm_eps"}, 1e-6));
}

void put_heads(GgufExportFields& f, int64_t head_dim) {
  const int64_t heads = f.integer({"num_attention_heads"});
  f.put("attention.head_count", heads);
  f.put("attention.head_count_kv", f.integer({"num_key_value_heads"}, heads));
  f.put("attention.key_length", head_dim);
  f.put("attention.value_length", head_dim);
}

void put_experts(GgufExportFields& f, FieldNames count, FieldNames used) {
  f.put("expert_count", f.integer(count));
  f.put("expert_used_count", f.integer(used));
  f.put("expert_feed_forward_length", f.rows_of("ffn_up_exps.weight"));
}

// Sections of the position are those of text alone: all of them are the same.
void put_sections(GgufExportFields& f) {
  std::vector<int64_t> sections;
  if (const Json* found = f.rope().find("mrope_section"); found != nullptr && found->is_array())
    for (const Json& value : found->as_array()) sections.push_back(value.is_int() ? value.as_int() : 0);
  if (sections.empty()) sections = {11, 11, 10};
  sections.resize(4);
  f.put_list("rope.dimension_sections", sections);
}

void put_qwen(GgufExportFields& f) {
  const int64_t head_dim = f.integer({"head_dim"}, 256), value_heads = f.integer({"linear_num_value_heads"}, 32);
  put_base(f, f.integer({"max_position_embeddings"}, 32768));
  put_heads(f, head_dim);
  f.put_rope(head_dim, 0.25);
  f.put("ssm.conv_kernel", f.integer({"linear_conv_kernel_dim"}, 4));
  f.put("ssm.state_size", f.integer({"linear_key_head_dim"}, 128));
  f.put("ssm.group_count", f.integer({"linear_num_key_heads"}, 16));
  f.put("ssm.time_step_rank", value_heads);
  f.put("ssm.inner_size", value_heads * f.integer({"linear_value_head_dim"}, 128));
  std::vector<bool> recurrent;
  int64_t interval = 0;
  for (int64_t layer = 0; layer < f.num_layers(); ++layer) {
    recurrent.push_back(f.layer_has(layer, "ssm_conv1d.weight"));
    if (!recurrent.back() && interval == 0) interval = layer + 1;
  }
  f.put_flags("attention.recurrent_layers", std::move(recurrent));
  f.put("full_attention_interval", f.integer({"full_attention_interval"}, interval));
  if (f.any_layer_has("ffn_up.weight")) f.put("feed_forward_length", f.rows_of("ffn_up.weight"));
  f.require_text({"hidden_act"}, "silu");
}

void put_qwen_experts(GgufExportFields& f) {
  put_experts(f, {"num_experts"}, {"num_experts_per_tok"});
  f.put("expert_shared_feed_forward_length", f.rows_of("ffn_up_shexp.weight"));
}

void describe_qwen3_next(GgufExportFields& f) {
  put_qwen(f);
  put_qwen_experts(f);
  f.require_flag({"norm_topk_prob"}, true, true);
  for (int64_t layer = 0; layer < f.num_layers(); ++layer)
    f.require(f.layer_has(layer, "ffn_gate_inp.weight"), fmt::format("layer {} has no experts", layer));
}

void describe_qwen35(GgufExportFields& f) {
  put_qwen(f);
  put_sections(f);
}

void describe_qwen35moe(GgufExportFields& f) {
  describe_qwen35(f);
  put_qwen_experts(f);
}

int64_t nested(const GgufExportFields& f, const char* key, FieldNames flat) {
  const Json* linear = f.find({"linear_attn_config"});
  const Json* found = linear == nullptr ? nullptr : linear->find(key);
  return found != nullptr && found->is_int() ? found->as_int() : f.integer(flat);
}

void describe_kimi(GgufExportFields& f) {
  const int64_t rank = f.integer({"kv_lora_rank"}), rotated = f.integer({"qk_rope_head_dim"});
  put_base(f, f.integer({"model_max_length", "max_position_embeddings"}, 1 << 20));
  f.put("feed_forward_length",
        f.any_layer_has("ffn_up.weight") ? f.rows_of("ffn_up.weight") : f.integer({"intermediate_size"}));
  f.put("attention.head_count", f.integer({"num_attention_heads"}));
  f.put_per_layer("attention.head_count_kv", "attn_kv_a_mqa.weight", 1);
  f.put("ssm.conv_kernel", nested(f, "short_conv_kernel_size", {"linear_conv_kernel_dim"}));
  f.put("kda.head_dim", nested(f, "head_dim", {"linear_head_dim"}));
  if (f.has({"q_lora_rank"})) f.put("attention.q_lora_rank", f.integer({"q_lora_rank"}));
  f.put("attention.kv_lora_rank", rank);
  f.put("rope.dimension_count", rotated);
  f.put("attention.key_length", rank + rotated);
  f.put("attention.value_length", rank);
  f.put("attention.key_length_mla", f.integer({"qk_nope_head_dim"}) + rotated);
  f.put("attention.value_length_mla", f.integer({"v_head_dim"}));
  if (!f.any_layer_has("ffn_gate_inp.weight")) return;
  put_experts(f, {"num_experts"}, {"num_experts_per_token", "num_experts_per_tok"});
  int64_t dense = 0;
  while (dense < f.num_layers() && !f.layer_has(dense, "ffn_gate_inp.weight")) ++dense;
  f.put("leading_dense_block_count", dense);
  f.put("expert_shared_count", f.integer({"num_shared_experts"}, 0));
  f.put("expert_group_count", f.integer({"num_expert_group"}, 1));
  f.put("expert_group_used_count", f.integer({"topk_group"}, 1));
  f.put_real("expert_weights_scale", f.real({"routed_scaling_factor"}, 1));
  f.put_flag("expert_weights_norm", f.flag({"moe_renormalize"}, true));
  f.put("expert_gating_func", 2);
  f.require_text({"moe_router_activation_func"}, "sigmoid");
}

void describe_minimax(GgufExportFields& f) {
  const int64_t heads = f.integer({"num_attention_heads"});
  const int64_t head_dim = f.integer({"head_dim"}, f.integer({"hidden_size"}) / std::max<int64_t>(heads, 1));
  put_base(f, f.integer({"max_position_embeddings"}, 10240000));
  put_heads(f, head_dim);
  f.put("feed_forward_length", f.rows_of("ffn_up_exps.weight"));
  f.put_rope(head_dim, 1.0, 10000000.0);
  put_experts(f, {"num_local_experts"}, {"num_experts_per_tok"});
  const double alpha = f.real({"layernorm_full_attention_alpha"}, 1);
  for (const char* field : {"layernorm_linear_attention_alpha", "layernorm_mlp_alpha"})
    f.require(f.real({field}, 1) == alpha, std::string(field) + " is not layernorm_full_attention_alpha");
  for (const char* field : {"layernorm_linear_attention_beta", "layernorm_full_attention_beta", "layernorm_mlp_beta"})
    f.require(f.real({field}, 1) == 1, std::string(field) + " is not 1");
  f.require_flag({"postnorm"}, true, false);
  f.put_real("residual_scale", alpha);
}

const std::vector<GgufFamily::Alias> kTextOfContainer = {
    {"model.", "model.language_model."},
    {"mlp.experts.{}.gate_proj.weight", "mlp.experts.gate_up_proj"},
    {"mlp.experts.{}.up_proj.weight", "mlp.experts.gate_up_proj"},
    {"mlp.experts.{}.down_proj.weight", "mlp.experts.down_proj"},
};

}  // namespace

std::vector<GgufFamily> gguf_delta_families() {
  const std::vector<std::string_view> fused = {"ffn_gate_up_exps.weight"};
  const std::vector<GgufFamily::Form> gate = {{"ffn_gate_inp_shexp.weight", F::kVector}};
  return {
      {"qwen3_next", qwen3_next_name, describe_qwen3_next, fused, gate, nullptr, kTextOfContainer},
      {"qwen3_5_text", qwen35_name, describe_qwen35, fused, gate, nullptr, kTextOfContainer},
      {"qwen3_5", qwen35_name, describe_qwen35, fused, gate, nullptr, kTextOfContainer},
      {"qwen3_5_moe_text", qwen35moe_name, describe_qwen35moe, fused, gate, nullptr, kTextOfContainer},
      {"qwen3_5_moe", qwen35moe_name, describe_qwen35moe, fused, gate, nullptr, kTextOfContainer},
      {"kimi_linear",
       kimi_name,
       describe_kimi,
       {"attn_kv_b.weight"},
       {{"ssm_conv1d_q.weight", F::kKernel}, {"ssm_conv1d_k.weight", F::kKernel}, {"ssm_conv1d_v.weight", F::kKernel}},
       nullptr,
       {{"mlp.gate_proj.weight", "block_sparse_moe.gate_proj.weight"},
        {"mlp.up_proj.weight", "block_sparse_moe.up_proj.weight"},
        {"mlp.down_proj.weight", "block_sparse_moe.down_proj.weight"}}},
      {"minimax_text_01", minimax_name, describe_minimax},
      {"minimax_m1", minimax_name, describe_minimax},
  };
}

namespace {

const std::vector<GgufFamily>& families() {
  static const std::vector<GgufFamily> kFamilies = [] {
    std::vector<GgufFamily> all;
    for (auto* group : {gguf_mamba_families, gguf_hybrid_families, gguf_delta_families})
      for (GgufFamily& family : group()) all.push_back(std::move(family));
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.model_type < b.model_type; });
    return all;
  }();
  return kFamilies;
}

}  // namespace

const GgufFamily* find_gguf_family(std::string_view model_type) noexcept {
  for (const GgufFamily& family : families())
    if (family.model_type == model_type) return &family;
  return nullptr;
}

std::string gguf_family_names() {
  std::string names;
  for (const GgufFamily& family : families()) names += (names.empty() ? "" : ", ") + std::string(family.model_type);
  return names;
}

}  // namespace coluber
