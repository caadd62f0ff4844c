// SPDX-License-Identifier: Apache-2.0
//
// LFM2 and LFM2-MoE (Liquid AI, 2025): layers of gated short convolution or grouped-query attention with normed queries
// and keys, each followed by a gated MLP or, in LFM2-MoE behind its first layers, by experts.
//
//   x = x + operator(operator_norm(x)); x = x + ffn(ffn_norm(x))
#include <algorithm>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/norm.h"
#include "layers/recurrent_layer.h"
#include "layers/short_conv.h"
#include "layers/weight_loader.h"
#include "models/decoder.h"
#include "models/residual_block.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct Lfm2Config {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0, conv_l_cache = 0;
  int64_t intermediate_size = 0, block_multiple_of = 0;
  double block_ffn_dim_multiplier = 0, norm_eps = 0;
  bool block_auto_adjust_ff_dim = true, conv_bias = false, tie_word_embeddings = true;
  std::vector<std::string> layer_types;
  RopeConfig rope;
  int64_t num_dense_layers = 0;  // of MLPs; experts in the layers behind
  int64_t moe_intermediate_size = 0, num_experts = 0, num_experts_per_tok = 0;
  bool norm_topk_prob = true, use_expert_bias = true;
  double routed_scaling_factor = 1.0;

  bool has_experts(int64_t layer) const { return layer >= num_dense_layers; }
  bool is_attention(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "full_attention"; }

  // The width that the weights have: two thirds, scaled, rounded up, unless the config says that its number is final.
  int64_t ffn_size() const {
    if (!block_auto_adjust_ff_dim) return intermediate_size;
    int64_t size = 2 * intermediate_size / 3;
    size = static_cast<int64_t>(block_ffn_dim_multiplier * static_cast<double>(size));
    return (size + block_multiple_of - 1) / block_multiple_of * block_multiple_of;
  }
};

// Older configs list the attention layers instead of naming every layer's kind.
void read_layer_types(ConfigFields& fields, Lfm2Config& c) {
  std::vector<int64_t> full_attn_idxs;
  fields.optional("layer_types", &c.layer_types, {}, one_of({"conv", "short_conv", "full_attention"}))
      .optional("full_attn_idxs", &full_attn_idxs, {}, at_least(0));
  if (!c.layer_types.empty() || !fields.ok()) return;
  const bool listed = fields.has("full_attn_idxs");
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const bool full = !listed || std::find(full_attn_idxs.begin(), full_attn_idxs.end(), i) != full_attn_idxs.end();
    c.layer_types.push_back(full ? "full_attention" : "conv");
  }
}

// The MLP's width is final here: nothing derives it.
void read_moe(ConfigFields& fields, Lfm2Config& c) {
  c.block_auto_adjust_ff_dim = false;
  fields.optional("num_dense_layers", &c.num_dense_layers, 2, at_least(0))
      .required("moe_intermediate_size", &c.moe_intermediate_size, width_bound())
      .required("num_experts", &c.num_experts, experts_bound())
      .required("num_experts_per_tok", &c.num_experts_per_tok, experts_bound())
      .optional("norm_topk_prob", &c.norm_topk_prob, true)
      .optional("use_expert_bias", &c.use_expert_bias, true)
      .optional("routed_scaling_factor", &c.routed_scaling_factor, 1.0, finite())
      .check([&] { return c.num_experts_per_tok <= c.num_experts; }, "num_experts_per_tok must be at most num_experts");
}

Lfm2Config read_config(const std::string& text, const std::string& path, bool moe) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  Lfm2Config c;
  fields.alias("intermediate_size", {"block_ff_dim"})
      .alias("tie_word_embeddings", {"tie_embedding"})
      .alias("norm_eps", {"block_norm_eps"})
      .alias("num_attention_heads", {"num_heads"})
      .alias("hidden_size", {"block_dim"});
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("num_attention_heads", &c.num_attention_heads, heads_bound());
  fields.optional("num_key_value_heads", &c.num_key_value_heads, c.num_attention_heads, heads_bound())
      .optional("head_dim", &c.head_dim, std::max<int64_t>(c.hidden_size / c.num_attention_heads, 1), head_dim_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .optional("block_multiple_of", &c.block_multiple_of, 256, width_bound())
      .optional("block_ffn_dim_multiplier", &c.block_ffn_dim_multiplier, 1.0, between(1e-3, 1e3))
      .optional("block_auto_adjust_ff_dim", &c.block_auto_adjust_ff_dim, true)
      .optional("conv_L_cache", &c.conv_l_cache, 3, between(2, 8))
      .optional("conv_bias", &c.conv_bias, false)
      .optional("max_position_embeddings", &c.max_position_embeddings, 128000, positive())
      .optional("norm_eps", &c.norm_eps, 1e-5, positive_finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, true);
  c.num_dense_layers = c.num_hidden_layers;
  if (moe) read_moe(fields, c);
  read_layer_types(fields, c);
  c.rope = read_rope_parameters(fields, 1000000.0, c.head_dim);
  fields
      .check([&] { return static_cast<int64_t>(c.layer_types.size()) == c.num_hidden_layers; },
             "layer_types must name num_hidden_layers layers")
      .check([&] { return c.ffn_size() >= 1 && c.ffn_size() <= kMostWidth; },
             fmt::format("the width of the MLP (block_ffn_dim_multiplier * 2/3 * intermediate_size, rounded up to "
                         "block_multiple_of) must be from 1 to {}",
                         kMostWidth))
      .check([&] { return fields.has("head_dim") || c.hidden_size % c.num_attention_heads == 0; },
             "num_attention_heads must divide hidden_size")
      .check([&] { return c.num_attention_heads * c.head_dim <= kMostWidth; },
             fmt::format("num_attention_heads * head_dim must be at most {}", kMostWidth))
      .check([&] { return c.num_attention_heads % c.num_key_value_heads == 0; },
             "num_key_value_heads must divide num_attention_heads")
      .finish();
  return c;
}

AttentionConfig attention_config(const Lfm2Config& c) {
  AttentionConfig attention;
  attention.hidden_size = c.hidden_size;
  attention.num_heads = c.num_attention_heads;
  attention.num_kv_heads = c.num_key_value_heads;
  attention.head_dim = c.head_dim;
  attention.rope = c.rope;
  attention.qk_norm_eps = c.norm_eps;
  attention.out_proj = "out_proj";
  attention.q_norm = "q_layernorm";
  attention.k_norm = "k_layernorm";
  return attention;
}

ShortConvConfig conv_config(const Lfm2Config& c) {
  ShortConvConfig conv;
  conv.hidden_size = c.hidden_size;
  conv.conv_kernel = c.conv_l_cache;
  conv.use_bias = c.conv_bias;
  return conv;
}

MlpConfig mlp_config(const Lfm2Config& c) {
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = c.ffn_size();
  mlp.gate = "w1";
  mlp.up = "w3";
  mlp.down = "w2";
  return mlp;
}

MoeConfig moe_config(const Lfm2Config& c) {
  MoeConfig moe;
  moe.hidden_size = c.hidden_size;
  moe.intermediate_size = c.moe_intermediate_size;
  moe.num_experts = c.num_experts;
  moe.top_k = c.num_experts_per_tok;
  moe.renormalize = c.norm_topk_prob;
  moe.stacked_w1_w3 = "experts.gate_up_proj";
  moe.stacked_w2 = "experts.down_proj";
  moe.score = RouterScore::kSigmoid;
  if (c.use_expert_bias) moe.selection_bias = "expert_bias";
  moe.epsilon = 1e-6;
  moe.scale = c.routed_scaling_factor;
  return moe;
}

std::unique_ptr<DecoderBlock> make_block(const Lfm2Config& c, const BlockContext& context) {
  const WeightLoader& loader = context.layer;
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(loader, "operator_norm", c.hidden_size, c.norm_eps));
  if (c.is_attention(context.index)) {
    block->add("full_attention", std::make_unique<Attention>(attention_config(c), loader.scoped("self_attn")));
  } else {
    block->add("short_conv", std::make_unique<ShortConv>(conv_config(c), loader.scoped("conv")));
  }
  block->begin_half(RmsNorm(loader, "ffn_norm", c.hidden_size, c.norm_eps));
  const WeightLoader ffn = loader.scoped("feed_forward");
  if (c.has_experts(context.index)) {
    block->add("moe", std::make_unique<MoeBlock>(moe_config(c), ffn), {}, layer_name_of(ffn));
  } else {
    block->add("mlp", std::make_unique<Mlp>(mlp_config(c), ffn), {}, layer_name_of(ffn));
  }
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context, const char* model_type, bool moe) {
  const Lfm2Config c = read_config(context.config_json, context.config_path, moe);
  DecoderConfig decoder = decoder_config(model_type, c, c.norm_eps);
  decoder.norm = "embedding_norm";
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kLfm2({"lfm2",
                           {"Lfm2ForCausalLM"},
                           [](ModelLoadContext& context) { return load(context, "lfm2", false); },
                           {},
                           /*runs_on_cuda=*/true});
const RegisterModel kLfm2Moe({"lfm2_moe",
                              {"Lfm2MoeForCausalLM"},
                              [](ModelLoadContext& context) { return load(context, "lfm2_moe", true); },
                              {},
                              /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
