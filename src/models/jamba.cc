// SPDX-License-Identifier: Apache-2.0
//
// Jamba (AI21, 2024): Mamba mixers with normed dt, B and C, attention without positions every attn_layer_period layers,
// and experts in place of the MLP every expert_layer_period layers. x = x + mixer(input_layernorm(x)); x = x +
// ffn(pre_ff_layernorm(x)).
#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/mamba_mixer.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/recurrent_layer.h"
#include "models/decoder.h"
#include "models/hybrid_fields.h"
#include "models/residual_block.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct JambaConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0, intermediate_size = 0;
  int64_t attn_layer_period = 0, attn_layer_offset = 0, expert_layer_period = 0, expert_layer_offset = 0;
  int64_t num_experts = 0, num_experts_per_tok = 0, mamba_expand = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  AttentionConfig attention;
  MambaMixerConfig mamba;

  bool is_attention(int64_t layer) const { return layer % attn_layer_period == attn_layer_offset; }
  bool has_experts(int64_t layer) const {
    return num_experts > 1 && layer % expert_layer_period == expert_layer_offset;
  }
};

void read_mixer(ConfigFields& fields, JambaConfig& c) {
  MambaMixerConfig& mixer = c.mamba;
  bool norms = true;
  fields.optional("mamba_d_state", &mixer.state_size, 16, width_bound())
      .optional("mamba_d_conv", &mixer.conv_kernel, 4, between(2, 8))
      .optional("mamba_expand", &c.mamba_expand, 2, between(1, 1 << 10))
      .optional("mamba_conv_bias", &mixer.use_conv_bias, true)
      .optional("mamba_proj_bias", &mixer.use_bias, false)
      .optional("mamba_inner_layernorms", &norms, true)
      .check([&] { return c.mamba_expand * c.hidden_size <= kMostWidth; },
             fmt::format("mamba_expand * hidden_size must be at most {}", kMostWidth));
  mixer.time_step_rank = read_int_or_auto(fields, "mamba_dt_rank", (c.hidden_size + 15) / 16, width_bound());
  mixer.hidden_size = c.hidden_size;
  mixer.intermediate_size = c.mamba_expand * c.hidden_size;
  mixer.mixer_norm_weights = norms;
  if (norms) mixer.mixer_rms_eps = c.rms_norm_eps;
}

JambaConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  JambaConfig c;
  fields.alias("num_experts", {"num_local_experts"});
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 262144, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-6, positive_finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false)
      .optional("attn_layer_period", &c.attn_layer_period, 8, positive())
      .optional("attn_layer_offset", &c.attn_layer_offset, 4, at_least(0))
      .optional("expert_layer_period", &c.expert_layer_period, 2, positive())
      .optional("expert_layer_offset", &c.expert_layer_offset, 1, at_least(0))
      .optional("num_experts", &c.num_experts, 16, experts_bound())
      .optional("num_experts_per_tok", &c.num_experts_per_tok, 2, experts_bound())
      .check([&] { return c.attn_layer_offset < c.attn_layer_period; },
             "attn_layer_offset must be below attn_layer_period")
      .check([&] { return c.expert_layer_offset < c.expert_layer_period; },
             "expert_layer_offset must be below expert_layer_period")
      .check([&] { return c.num_experts == 1 || c.num_experts_per_tok <= c.num_experts; },
             "num_experts_per_tok must be at most num_experts");
  c.attention = read_attention_fields(fields, c.hidden_size, 8);
  read_mixer(fields, c);
  std::string hidden_act;
  fields.optional("hidden_act", &hidden_act, "silu", one_of({"silu", "swish"})).finish();
  return c;
}

void add_feed_forward(ResidualBlock& block, const JambaConfig& c, const BlockContext& context) {
  WeightLoader loader = context.layer.scoped("feed_forward");
  if (!c.has_experts(context.index)) {
    MlpConfig mlp;
    mlp.hidden_size = c.hidden_size;
    mlp.intermediate_size = c.intermediate_size;
    block.add("mlp", std::make_unique<Mlp>(mlp, loader), {}, layer_name_of(loader));
    return;
  }
  MoeConfig moe;
  moe.hidden_size = c.hidden_size;
  moe.intermediate_size = c.intermediate_size;
  moe.num_experts = c.num_experts;
  moe.top_k = c.num_experts_per_tok;
  moe.renormalize = false;
  moe.gate = "router";
  moe.w1 = "gate_proj";
  moe.w3 = "up_proj";
  moe.w2 = "down_proj";
  block.add("moe", std::make_unique<MoeBlock>(moe, loader), {}, layer_name_of(loader));
}

std::unique_ptr<DecoderBlock> make_block(const JambaConfig& c, const BlockContext& context) {
  const WeightLoader& loader = context.layer;
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(loader, "input_layernorm", c.hidden_size, c.rms_norm_eps));
  if (c.is_attention(context.index)) {
    block->add("full_attention", std::make_unique<Attention>(c.attention, loader.scoped("self_attn")));
  } else {
    block->add("mamba1", std::make_unique<MambaMixer>(c.mamba, loader.scoped("mamba")));
  }
  block->begin_half(RmsNorm(loader, "pre_ff_layernorm", c.hidden_size, c.rms_norm_eps));
  add_feed_forward(*block, c, context);
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const JambaConfig c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder = decoder_config("jamba", c, c.rms_norm_eps);
  decoder.norm = "final_layernorm";
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kJamba({"jamba", {"JambaForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
