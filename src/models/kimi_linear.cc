// SPDX-License-Identifier: Apache-2.0
//
// Kimi Linear (Kimi Team, 2025): layers of Kimi Delta Attention, and every fourth or so latent attention without
// positions, each followed by an MLP or, from some layer on, experts with a sigmoid router in groups and a shared
// expert. x = x + mixer(input_layernorm(x)); x = x + mlp(post_attention_layernorm(x)).
#include <algorithm>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/kimi_delta_attention.h"
#include "layers/latent_attention.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/recurrent_layer.h"
#include "models/activation_field.h"
#include "models/decoder.h"
#include "models/expert_fields.h"
#include "models/residual_block.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct KimiConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, intermediate_size = 0, max_position_embeddings = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  Activation hidden_act = Activation::kSilu;
  std::vector<std::string> layer_types, mlp_layer_types;
  KimiDeltaAttentionConfig delta;
  LatentAttentionConfig attention;
  MoeConfig moe;

  bool is_attention(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "full_attention"; }
  bool has_experts(int64_t layer) const { return mlp_layer_types[static_cast<size_t>(layer)] == "sparse"; }
};

// Published configs list the layers of each kind, from 1 on, in linear_attn_config.
void read_listed_layers(ConfigFields& fields, ConfigFields& linear, KimiConfig& c) {
  std::vector<int64_t> full, delta;
  const bool listed = linear.has("full_attn_layers") && linear.has("kda_layers");
  linear.optional("full_attn_layers", &full, {}, between(1, 1 << 16))
      .optional("kda_layers", &delta, {}, between(1, 1 << 16));
  if (!c.layer_types.empty() || !fields.ok()) return;
  const auto has = [](const std::vector<int64_t>& list, int64_t layer) {
    return std::find(list.begin(), list.end(), layer) != list.end();
  };
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if (listed && has(full, i + 1) == has(delta, i + 1)) {
      fields.problem("linear_attn_config", fmt::format("expected layer {} (counted from 1) in one of full_attn_layers "
                                                       "and kda_layers",
                                                       i + 1));
      return;
    }
    const bool is_full = listed ? has(full, i + 1) : i > 0 && i % 4 == 0;
    c.layer_types.push_back(is_full ? "full_attention" : "linear_attention");
  }
}

void read_delta(ConfigFields& fields, KimiConfig& c) {
  ConfigFields linear = fields.nested("linear_attn_config");
  KimiDeltaAttentionConfig& delta = c.delta;
  fields.optional("linear_head_dim", &delta.head_dim, 128, head_dim_bound())
      .optional("linear_num_heads", &delta.num_heads, 32, heads_bound())
      .optional("linear_conv_kernel_dim", &delta.conv_kernel, 4, between(2, 16))
      .optional("layer_types", &c.layer_types, {}, one_of({"linear_attention", "full_attention"}));
  linear.optional("head_dim", &delta.head_dim, delta.head_dim, head_dim_bound())
      .optional("num_heads", &delta.num_heads, delta.num_heads, heads_bound())
      .optional("short_conv_kernel_size", &delta.conv_kernel, delta.conv_kernel, between(2, 16));
  read_listed_layers(fields, linear, c);
  delta.hidden_size = c.hidden_size;
  delta.norm_eps = c.rms_norm_eps;
  delta.a_log_shape = Shape{1, 1, delta.num_heads, 1};
  fields
      .check([&] { return static_cast<int64_t>(c.layer_types.size()) == c.num_hidden_layers; },
             "layer_types must name num_hidden_layers layers")
      .check([&] { return delta.head_dim <= 512; }, "the head dim of linear attention must be at most 512")
      .check([&] { return delta.num_heads * delta.head_dim <= kMostWidth / 3; },
             fmt::format("heads times head dim of linear attention must be at most {}", kMostWidth / 3));
}

void read_attention(ConfigFields& fields, KimiConfig& c) {
  LatentAttentionConfig defaults;
  defaults.kv_lora_rank = 512;
  defaults.qk_nope_head_dim = defaults.v_head_dim = 128;
  defaults.qk_rope_head_dim = 64;
  c.attention = read_latent_fields(fields, defaults, 1 << 14);
  c.attention.hidden_size = c.hidden_size;
  bool without_positions = true;
  fields.optional("mla_use_nope", &without_positions, true)
      .check([&] { return without_positions; }, "mla_use_nope must be true: Kimi Linear's attention rotates nothing");
}

// first_k_dense_replace and moe_layer_freq are the published spelling of mlp_layer_types.
void read_experts(ConfigFields& fields, KimiConfig& c) {
  MoeConfig& moe = c.moe;
  int64_t shared = 0, first_dense = 0, every = 0;
  std::string score;
  fields.alias("num_experts", {"num_local_experts"})
      .alias("num_experts_per_token", {"num_experts_per_tok"})
      .alias("num_shared_experts", {"n_shared_experts"})
      .alias("num_expert_group", {"n_group"})
      .alias("moe_renormalize", {"norm_topk_prob"});
  fields.optional("moe_intermediate_size", &moe.intermediate_size, 1024, width_bound())
      .optional("num_experts", &moe.num_experts, 256, experts_bound())
      .optional("num_experts_per_token", &moe.top_k, 8, experts_bound())
      .optional("num_shared_experts", &shared, 1, between(0, 1 << 10))
      .optional("num_expert_group", &moe.num_groups, 1, experts_bound())
      .optional("topk_group", &moe.topk_groups, 1, experts_bound())
      .optional("moe_renormalize", &moe.renormalize, true)
      .optional("routed_scaling_factor", &moe.scale, 2.446, finite())
      .optional("moe_router_activation_func", &score, "sigmoid", one_of({"sigmoid"}))
      .optional("first_k_dense_replace", &first_dense, 1, at_least(0))
      .optional("moe_layer_freq", &every, 1, positive())
      .optional("mlp_layer_types", &c.mlp_layer_types, {}, one_of({"dense", "sparse"}));
  if (c.mlp_layer_types.empty() && fields.ok()) {
    for (int64_t i = 0; i < c.num_hidden_layers; ++i)
      c.mlp_layer_types.push_back(i < first_dense || i % every != 0 ? "dense" : "sparse");
  }
  fields
      .check([&] { return static_cast<int64_t>(c.mlp_layer_types.size()) == c.num_hidden_layers; },
             "mlp_layer_types must name num_hidden_layers layers")
      .check([&] { return moe.intermediate_size * shared <= kMostWidth; },
             fmt::format("num_shared_experts * moe_intermediate_size must be at most {}", kMostWidth));
  check_expert_groups(fields, {moe.num_experts, moe.top_k, moe.num_groups, moe.topk_groups, "num_experts",
                               "num_experts_per_token", "num_expert_group"});
  moe.hidden_size = c.hidden_size;
  moe.activation = c.hidden_act;
  moe.score = RouterScore::kSigmoid;
  moe.selection_bias = "gate.e_score_correction_bias";
  moe.epsilon = 1e-20;
  if (shared == 0) return;
  moe.shared.emplace();
  moe.shared->hidden_size = c.hidden_size;
  moe.shared->intermediate_size = moe.intermediate_size * shared;
  moe.shared->activation = c.hidden_act;
}

KimiConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  KimiConfig c;
  fields.alias("max_position_embeddings", {"model_max_length"});
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 1048576, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-5, positive_finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false);
  c.hidden_act = read_activation(fields, "hidden_act", "silu");
  fields.check([&] { return c.hidden_act == Activation::kSilu; },
               "hidden_act must be silu: the convolutions of the linear attention have no other");
  read_delta(fields, c);
  read_attention(fields, c);
  read_experts(fields, c);
  fields.finish();
  return c;
}

std::unique_ptr<DecoderBlock> make_block(const KimiConfig& c, const BlockContext& context) {
  const WeightLoader& loader = context.layer;
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(loader, "input_layernorm", c.hidden_size, c.rms_norm_eps));
  if (c.is_attention(context.index)) {
    block->add("latent_attention", std::make_unique<LatentAttention>(c.attention, loader.scoped("self_attn")));
  } else {
    block->add("kda", std::make_unique<KimiDeltaAttention>(c.delta, loader.scoped("self_attn")));
  }
  block->begin_half(RmsNorm(loader, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps));
  if (c.has_experts(context.index)) {
    const WeightLoader experts = loader.scoped(loader.has("mlp.gate.weight") ? "mlp" : "block_sparse_moe");
    MoeConfig moe = c.moe;
    if (experts.has("experts.0.gate_proj.weight")) moe.w1 = "gate_proj", moe.w3 = "up_proj", moe.w2 = "down_proj";
    block->add("moe", std::make_unique<MoeBlock>(moe, experts), {}, layer_name_of(experts));
  } else {
    // transformers writes the MLPs, too, under the name of the experts.
    const WeightLoader mlp_loader =
        loader.scoped(loader.has("block_sparse_moe.gate_proj.weight") ? "block_sparse_moe" : "mlp");
    MlpConfig mlp;
    mlp.hidden_size = c.hidden_size;
    mlp.intermediate_size = c.intermediate_size;
    mlp.activation = c.hidden_act;
    block->add("mlp", std::make_unique<Mlp>(mlp, mlp_loader), {}, layer_name_of(mlp_loader));
  }
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const KimiConfig c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder = decoder_config("kimi_linear", c, c.rms_norm_eps);
  // transformers never ties here: a stored head is the head whatever the config says.
  decoder.tied = c.tie_word_embeddings && !context.weights.contains("lm_head.weight");
  decoder.ignored = {
      {fmt::format("model.layers.{}.", c.num_hidden_layers), "heads that predict several tokens are not run"}};
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kKimiLinear({"kimi_linear", {"KimiLinearForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
