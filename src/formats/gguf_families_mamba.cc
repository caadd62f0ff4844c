// SPDX-License-Identifier: Apache-2.0
// Mamba, Mamba-2, Jamba, Falcon-H1, RWKV-6 and RWKV-7 as GGUF.
#include <algorithm>

#include "formats/gguf_families.h"

namespace coluber {
namespace {

using F = GgufStoredForm;

constexpr int64_t kNoLimit = 1 << 20;  // the context of models without one

std::string_view mamba_name(const GgufExportFields&) { return "mamba"; }
std::string_view mamba2_name(const GgufExportFields&) { return "mamba2"; }
std::string_view jamba_name(const GgufExportFields&) { return "jamba"; }
std::string_view falcon_h1_name(const GgufExportFields&) { return "falcon-h1"; }
std::string_view rwkv6_name(const GgufExportFields&) { return "rwkv6"; }
std::string_view rwkv7_name(const GgufExportFields&) { return "rwkv7"; }

// Readers want these although they mean nothing here.
void put_unused(GgufExportFields& f) {
  f.put("context_length", kNoLimit);
  f.put("feed_forward_length", 0);
  f.put("attention.head_count", 0);
}

// A number, or "auto": a sixteenth of the width.
int64_t time_step_rank(const GgufExportFields& f, FieldNames names, int64_t hidden) {
  const Json* found = f.find(names);
  return found != nullptr && found->is_int() ? found->as_int() : (hidden + 15) / 16;
}

void describe_mamba(GgufExportFields& f) {
  const int64_t hidden = f.integer({"hidden_size", "d_model"});
  put_unused(f);
  f.put("embedding_length", hidden);
  f.put("block_count", f.num_layers());
  f.put("ssm.conv_kernel", f.integer({"conv_kernel", "d_conv"}, 4));
  f.put("ssm.inner_size", f.integer({"intermediate_size", "d_inner"}, hidden * f.integer({"expand"}, 2)));
  f.put("ssm.state_size", f.integer({"state_size", "d_state"}, 16));
  f.put("ssm.time_step_rank", time_step_rank(f, {"time_step_rank", "dt_rank"}, hidden));
  f.put_real("attention.layer_norm_rms_epsilon", f.real({"layer_norm_epsilon", "rms_norm_eps"}, 1e-5));
  f.put_flag("ssm.dt_b_c_rms", f.text({"model_type"}, "") == "falcon_mamba");
  f.require_text({"hidden_act"}, "silu");
}

void describe_mamba2(GgufExportFields& f) {
  const int64_t hidden = f.integer({"hidden_size", "d_model"}), inner = hidden * f.integer({"expand"}, 2);
  put_unused(f);
  f.put("embedding_length", hidden);
  f.put("block_count", f.num_layers());
  f.put("ssm.conv_kernel", f.integer({"conv_kernel", "d_conv"}, 4));
  f.put("ssm.inner_size", inner);
  f.put("ssm.state_size", f.integer({"state_size", "d_state"}, 128));
  f.put("ssm.time_step_rank", inner / std::max<int64_t>(f.integer({"head_dim"}, 64), 1));
  f.put("ssm.group_count", f.integer({"n_groups"}, 8));
  put_norm_of_groups(f);
  f.put_real("attention.layer_norm_rms_epsilon", f.real({"layer_norm_epsilon", "rms_norm_eps"}, 1e-5));
  f.require_text({"hidden_act"}, "silu");
  f.require_free_time_steps();
}

void describe_jamba(GgufExportFields& f) {
  const int64_t hidden = f.integer({"hidden_size"});
  f.put("block_count", f.num_layers());
  f.put("context_length", f.integer({"max_position_embeddings", "n_ctx"}, 262144));
  f.put("embedding_length", hidden);
  f.put("feed_forward_length", f.integer({"intermediate_size"}));
  f.put("attention.head_count", f.integer({"num_attention_heads"}));
  f.put_per_layer("attention.head_count_kv", "attn_q.weight", f.integer({"num_key_value_heads"}, 8));
  f.put("ssm.conv_kernel", f.integer({"mamba_d_conv"}, 4));
  f.put("ssm.inner_size", hidden * f.integer({"mamba_expand"}, 2));
  f.put("ssm.state_size", f.integer({"mamba_d_state"}, 16));
  f.put("ssm.time_step_rank", time_step_rank(f, {"mamba_dt_rank"}, hidden));
  f.put_real("attention.layer_norm_rms_epsilon", f.real({"rms_norm_eps"}, 1e-6));
  f.put("expert_count", f.integer({"num_local_experts", "num_experts"}, 16));
  f.put("expert_used_count", f.integer({"num_experts_per_tok"}, 2));
  f.require_text({"hidden_act"}, "silu");
}

void describe_falcon_h1(GgufExportFields& f) {
  const int64_t heads = f.integer({"num_attention_heads"}), hidden = f.integer({"hidden_size"});
  const int64_t head_dim = f.integer({"head_dim"}, hidden / std::max<int64_t>(heads, 1));
  const int64_t inner = f.integer({"mamba_d_ssm"}, hidden * f.integer({"mamba_expand"}, 2));
  f.put("context_length", f.integer({"max_position_embeddings"}, 8192));
  f.put("embedding_length", hidden);
  f.put("feed_forward_length", f.rows_of("ffn_up.weight"));
  f.put("attention.head_count", heads);
  f.put("attention.head_count_kv", f.integer({"num_key_value_heads"}, heads));
  f.put("attention.key_length", head_dim);
  f.put("attention.value_length", head_dim);
  f.put("block_count", f.num_layers());
  f.put("ssm.conv_kernel", f.integer({"mamba_d_conv"}, 4));
  f.put("ssm.inner_size", inner);
  f.put("ssm.state_size", f.integer({"mamba_d_state"}, 256));
  f.put("ssm.time_step_rank", f.integer({"mamba_n_heads"}, 128));
  f.put("ssm.group_count", f.integer({"mamba_n_groups"}, 1));
  f.put_real("attention.layer_norm_rms_epsilon", f.real({"rms_norm_eps"}, 1e-5));
  f.put_rope(head_dim);
  f.require(!f.any_layer_has("ssm_norm.weight") || !f.flag({"mamba_norm_before_gate"}, true),
            "mamba_norm_before_gate with mamba_rms_norm");
  f.require_text({"hidden_act"}, "silu");
  f.require_free_time_steps();
}

// The rows of Mamba-2's input: gate, x, B, C, dt.
double falcon_input_factor(const GgufExportFields& f, int64_t row) {
  const std::vector<double> parts = f.reals({"ssm_multipliers"});
  if (parts.size() != 5) return 1;
  const int64_t inner = f.number("ssm.inner_size"), states = f.number("ssm.group_count") * f.number("ssm.state_size");
  const int64_t ends[] = {inner, 2 * inner, 2 * inner + states, 2 * (inner + states)};
  const auto part = std::find_if(std::begin(ends), std::end(ends), [&](int64_t end) { return row < end; });
  return parts[static_cast<size_t>(part - std::begin(ends))];
}

// The format has no multipliers: they go into the weights behind which, or before which, they stand.
double falcon_factor(const GgufExportFields& f, std::string_view stored, int64_t row) {
  const auto mlp = [&](size_t which) {
    const std::vector<double> both = f.reals({"mlp_multipliers"});
    return which < both.size() ? both[which] : 1.0;
  };
  const double attention_in = f.real({"attention_in_multiplier"}, 1);
  if (stored == "token_embd.weight") return f.real({"embedding_multiplier"}, 1);
  if (stored == "output.weight") return f.real({"lm_head_multiplier"}, 1);
  if (stored == "attn_q.weight" || stored == "attn_v.weight") return attention_in;
  if (stored == "attn_k.weight") return attention_in * f.real({"key_multiplier"}, 1);
  if (stored == "attn_k.bias") return f.real({"key_multiplier"}, 1);
  if (stored.starts_with("attn_output.")) return f.real({"attention_out_multiplier"}, 1);
  if (stored.starts_with("ffn_gate.")) return mlp(0);
  if (stored.starts_with("ffn_down.")) return mlp(1);
  if (stored.starts_with("ssm_out.")) return f.real({"ssm_out_multiplier"}, 1);
  if (stored == "ssm_in.weight") return f.real({"ssm_in_multiplier"}, 1) * falcon_input_factor(f, row);
  if (stored == "ssm_in.bias") return falcon_input_factor(f, row);
  return 1;
}

void put_rwkv(GgufExportFields& f, int64_t hidden) {
  f.put("context_length", kNoLimit);
  f.put("embedding_length", hidden);
  f.put("block_count", f.num_layers());
  f.put("feed_forward_length", f.rows_of("channel_mix_key.weight"));
  f.put("attention.head_count", 0);
}

void describe_rwkv6(GgufExportFields& f) {
  const int64_t hidden = f.integer({"hidden_size"});
  put_rwkv(f, hidden);
  f.put_real("attention.layer_norm_epsilon", f.real({"layer_norm_epsilon"}, 1e-5));
  f.put("rescale_every_n_layers", f.integer({"rescale_every"}, 6));
  f.put("wkv.head_size", f.integer({"head_size"}, 64));
  f.put("time_mix_extra_dim", f.rows_of("time_mix_w1.weight") / 5);
  f.put("time_decay_extra_dim", f.rows_of("time_mix_decay_w1.weight"));
}

void describe_rwkv7(GgufExportFields& f) {
  put_rwkv(f, f.integer({"hidden_size"}));
  f.put_real("attention.layer_norm_epsilon", f.real({"layer_norm_epsilon", "norm_eps"}, 1e-5));
  f.put("wkv.head_size", f.integer({"head_size", "head_dim"}, 64));
  f.put("attention.decay_lora_rank", f.rows_of("time_mix_w1.weight"));
  f.put("attention.iclr_lora_rank", f.rows_of("time_mix_a1.weight"));
  f.put("attention.value_residual_mix_lora_rank", f.rows_of("time_mix_v1.weight"));
  f.put("attention.gate_lora_rank", f.rows_of("time_mix_g1.weight"));
  f.require(f.any_layer_has("attn_norm.weight"), "layers without a norm of their own (norm_first)");
}

const std::vector<GgufFamily::Form> kMamba2Forms = {
    {"ssm_a", F::kColumn}, {"ssm_d", F::kColumn}, {"ssm_norm.weight", F::kGroups}};

const std::vector<GgufFamily::Alias> kMambaAliases = {
    {"backbone.embeddings.weight", "backbone.embedding.weight"},
};

}  // namespace

std::vector<GgufFamily> gguf_mamba_families() {
  std::vector<GgufFamily> families = {
      {"mamba", mamba_name, describe_mamba},
      {"falcon_mamba", mamba_name, describe_mamba},
      {"mamba2", mamba2_name, describe_mamba2},
      {"jamba", jamba_name, describe_jamba},
      {"falcon_h1", falcon_h1_name, describe_falcon_h1},
      {"rwkv6", rwkv6_name, describe_rwkv6},
      {"rwkv7", rwkv7_name, describe_rwkv7},
  };
  for (GgufFamily& family : families) {
    if (family.model_type == "mamba2" || family.model_type == "falcon_h1") family.forms = kMamba2Forms;
    if (family.model_type.ends_with("mamba") || family.model_type == "mamba2") family.aliases = kMambaAliases;
  }
  GgufFamily& falcon = families[4];
  falcon.skipped = {"ffn_norm.weight"};  // llama.cpp asks for it without an ending
  falcon.factor = falcon_factor;
  GgufFamily& rwkv6 = families[5];
  for (const char* name : {"time_mix_lerp_w.weight", "time_mix_lerp_k.weight", "time_mix_lerp_v.weight",
                           "time_mix_lerp_r.weight", "time_mix_lerp_g.weight"})
    rwkv6.skipped.emplace_back(name);
  GgufFamily& rwkv7 = families[6];
  rwkv7.forms = {{"time_mix_r_k.weight", F::kVector}};
  rwkv7.stand_ins = {{"time_mix_v0.weight", "time_mix_a0.weight"},
                     {"time_mix_v1.weight", "time_mix_a1.weight"},
                     {"time_mix_v2.weight", "time_mix_a2.weight"}};
  return families;
}

}  // namespace coluber
