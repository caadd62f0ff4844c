// SPDX-License-Identifier: Apache-2.0
//
// Granite 4 (IBM, 2025): Mamba-2 mixers and attention, with or without rotation, each followed by a shared MLP and,
// where the config has any, experts beside it; every half is scaled before it is added. x = x + r * mixer(norm(x));
// x = x + r * (experts(norm(x)) + shared_mlp(norm(x))). Models of attention alone come under this name too.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/mamba_mixer2.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/recurrent_layer.h"
#include "models/decoder.h"
#include "models/hybrid_fields.h"
#include "models/residual_block.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct GraniteConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
  int64_t intermediate_size = 0, shared_intermediate_size = 0, num_local_experts = 0, num_experts_per_tok = 0;
  double rms_norm_eps = 0, embedding_multiplier = 0, logits_scaling = 0, residual_multiplier = 0;
  bool tie_word_embeddings = false;
  std::vector<std::string> layer_kinds;
  AttentionConfig attention;
  Mamba2Fields mamba;

  bool is_attention(int64_t layer) const { return layer_kinds[static_cast<size_t>(layer)] == "full_attention"; }
};

void read_feed_forward(ConfigFields& fields, GraniteConfig& c) {
  std::string hidden_act;
  fields.optional("num_local_experts", &c.num_local_experts, 8, between(0, 1 << 14))
      .optional("num_experts_per_tok", &c.num_experts_per_tok, 2, between(0, 1 << 14))
      .optional("intermediate_size", &c.intermediate_size, 11008, width_bound())
      .optional("shared_intermediate_size", &c.shared_intermediate_size, 1024, width_bound())
      .optional("hidden_act", &hidden_act, "silu", one_of({"silu", "swish"}))
      .check([&] { return c.num_local_experts == 0 || c.num_experts_per_tok >= 1; },
             "num_experts_per_tok must be at least 1 where there are experts (num_local_experts)")
      .check([&] { return c.num_local_experts == 0 || c.num_experts_per_tok <= c.num_local_experts; },
             "num_experts_per_tok must be at most num_local_experts");
}

void read_attention(ConfigFields& fields, GraniteConfig& c) {
  c.attention = read_attention_fields(fields, c.hidden_size, 0);
  double multiplier = 0;
  std::string positions;
  fields.optional("attention_multiplier", &multiplier, 1.0, finite())
      .optional("position_embedding_type", &positions, "nope", one_of({"rope", "nope"}));
  c.attention.scale = multiplier;
  if (positions == "rope") c.attention.rope = read_rope_parameters(fields, 10000.0, c.attention.head_dim);
}

GraniteConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  GraniteConfig c;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 2048, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-6, positive_finite())
      .optional("embedding_multiplier", &c.embedding_multiplier, 1.0, finite())
      .optional("logits_scaling", &c.logits_scaling, 1.0, positive_finite())
      .optional("residual_multiplier", &c.residual_multiplier, 1.0, finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false);
  read_feed_forward(fields, c);
  read_attention(fields, c);
  c.layer_kinds =
      read_layer_kinds(fields, {"layer_types", "layers_block_type"}, {"linear_attention", "full_attention"});
  if (c.layer_kinds.empty() && fields.ok())
    c.layer_kinds.assign(static_cast<size_t>(c.num_hidden_layers), "linear_attention");
  const bool has_mamba = std::count(c.layer_kinds.begin(), c.layer_kinds.end(), "linear_attention") > 0;
  c.mamba = read_mamba2_fields(fields, c.hidden_size, 0, has_mamba);
  c.mamba.mixer.norm_eps = c.rms_norm_eps;
  fields
      .check([&] { return static_cast<int64_t>(c.layer_kinds.size()) == c.num_hidden_layers; },
             "layer_types must name num_hidden_layers layers")
      .finish();
  return c;
}

void add_feed_forward(ResidualBlock& block, const GraniteConfig& c, const BlockContext& context) {
  const BranchMultipliers multipliers{1, c.residual_multiplier};
  if (c.num_local_experts > 0) {
    MoeConfig moe;
    moe.hidden_size = c.hidden_size;
    moe.intermediate_size = c.intermediate_size;
    moe.num_experts = c.num_local_experts;
    moe.top_k = c.num_experts_per_tok;
    moe.gate = "router.layer";
    moe.stacked_w1_w3 = "input_linear.weight";
    moe.stacked_w2 = "output_linear.weight";
    WeightLoader experts = context.layer.scoped("block_sparse_moe");
    block.add("moe", std::make_unique<MoeBlock>(moe, experts), multipliers, layer_name_of(experts));
  }
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = c.shared_intermediate_size;
  mlp.gate_up = "input_linear";
  mlp.down = "output_linear";
  WeightLoader shared = context.layer.scoped("shared_mlp");
  block.add("mlp", std::make_unique<Mlp>(mlp, shared), multipliers, layer_name_of(shared));
}

std::unique_ptr<DecoderBlock> make_block(const GraniteConfig& c, const BlockContext& context) {
  const WeightLoader& loader = context.layer;
  const BranchMultipliers multipliers{1, c.residual_multiplier};
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(loader, "input_layernorm", c.hidden_size, c.rms_norm_eps));
  if (c.is_attention(context.index)) {
    block->add("full_attention", std::make_unique<Attention>(c.attention, loader.scoped("self_attn")), multipliers);
  } else {
    block->add("mamba2", std::make_unique<MambaMixer2>(c.mamba.mixer, loader.scoped("mamba")), multipliers);
  }
  block->begin_half(RmsNorm(loader, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps));
  add_feed_forward(*block, c, context);
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const GraniteConfig c = read_config(context.config_json, context.config_path);
  context.config.mamba_chunk_size = c.mamba.chunk_size;
  DecoderConfig decoder = decoder_config("granitemoehybrid", c, c.rms_norm_eps);
  decoder.embedding_multiplier = c.embedding_multiplier;
  decoder.logits_scale = 1.0 / c.logits_scaling;
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kGraniteMoeHybrid(
    {"granitemoehybrid", {"GraniteMoeHybridForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
