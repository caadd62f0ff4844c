// SPDX-License-Identifier: Apache-2.0
//
// Qwen3-Next (Qwen, 2025) and Qwen3.5, dense and with experts: Gated DeltaNet layers, and every fourth attention with a
// gate in its queries' projection and a part of each head turned. All norms but the mixer's are centred on zero.
//
//   x = x + mixer(input_layernorm(x)); x = x + mlp(post_attention_layernorm(x))
//
// Of the multimodal containers the text part runs: with text alone their three rotations are one.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/gated_delta_net.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/recurrent_layer.h"
#include "models/activation_field.h"
#include "models/decoder.h"
#include "models/delta_fields.h"
#include "models/hybrid_fields.h"
#include "models/residual_block.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"

namespace coluber {
namespace {

enum class ExpertLayers { kNone, kSome, kAll };  // in which layers

struct Family {
  const char* model_type;
  ExpertLayers experts;
  DeltaProjections projections;
};

struct QwenConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0, intermediate_size = 0;
  int64_t moe_intermediate_size = 0, shared_expert_intermediate_size = 0, num_experts = 0, num_experts_per_tok = 0;
  int64_t decoder_sparse_step = 1;
  double rms_norm_eps = 0;
  bool norm_topk_prob = true, tie_word_embeddings = false;
  std::vector<int64_t> mlp_only_layers;
  Activation hidden_act = Activation::kSilu;
  std::vector<std::string> layer_types;
  AttentionConfig attention;
  GatedDeltaNetConfig delta;

  bool is_attention(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "full_attention"; }
  bool has_experts(int64_t layer) const {
    const bool only_mlp = std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) != mlp_only_layers.end();
    return num_experts > 0 && !only_mlp && (layer + 1) % decoder_sparse_step == 0;
  }
};

void read_experts(ConfigFields& fields, const Family& family, QwenConfig& c) {
  if (family.experts == ExpertLayers::kNone) return;
  const bool some = family.experts == ExpertLayers::kSome;
  fields.optional("moe_intermediate_size", &c.moe_intermediate_size, 512, width_bound())
      .optional("shared_expert_intermediate_size", &c.shared_expert_intermediate_size, 512, width_bound())
      .optional("num_experts", &c.num_experts, some ? 512 : 256, between(some ? 0 : 1, 1 << 14))
      .optional("num_experts_per_tok", &c.num_experts_per_tok, some ? 10 : 8, experts_bound())
      .check([&] { return c.num_experts == 0 || c.num_experts_per_tok <= c.num_experts; },
             "num_experts_per_tok must be at most num_experts");
  if (!some) return;
  fields.optional("norm_topk_prob", &c.norm_topk_prob, true)
      .optional("decoder_sparse_step", &c.decoder_sparse_step, 1, positive())
      .optional("mlp_only_layers", &c.mlp_only_layers, {}, at_least(0));
}

void read_attention(ConfigFields& fields, QwenConfig& c) {
  AttentionConfig& attention = c.attention;
  attention = read_attention_fields(fields, c.hidden_size, 0);
  attention.rope = read_rope_parameters(fields, 10000.0, attention.head_dim, 0.25);
  attention.qk_norm_eps = c.rms_norm_eps;
  attention.qk_norm_weight_offset = 1;
  attention.gate = OutputGate::kInQuery;
}

void read_text(ConfigFields& fields, const Family& family, QwenConfig& c) {
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 32768, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-6, positive_finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, c.tie_word_embeddings);
  c.hidden_act = read_activation(fields, "hidden_act", "silu");
  fields.check([&] { return c.hidden_act == Activation::kSilu; },
               "hidden_act must be silu: the convolutions of the linear attention have no other");
  read_experts(fields, family, c);
  bool any_mlp = false;
  for (int64_t i = 0; i < c.num_hidden_layers && fields.ok(); ++i) any_mlp = any_mlp || !c.has_experts(i);
  if (any_mlp) fields.required("intermediate_size", &c.intermediate_size, width_bound());
  read_attention(fields, c);
  GatedDeltaNetConfig defaults;
  defaults.num_k_heads = 16;
  defaults.num_v_heads = 32;
  defaults.head_k_dim = defaults.head_v_dim = 128;
  defaults.conv_kernel = 4;
  c.delta = read_delta_fields(fields, defaults);
  c.delta.hidden_size = c.hidden_size;
  c.delta.projections = family.projections;
  c.delta.norm_eps = c.rms_norm_eps;
  c.delta.norm = "norm";
  c.delta.out_proj = "out_proj";
  c.layer_types = read_delta_layer_types(fields, c.num_hidden_layers);
}

QwenConfig read_config(const std::string& text, const std::string& path, const Family& family) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  QwenConfig c;
  if (fields.has("text_config")) {
    fields.optional("tie_word_embeddings", &c.tie_word_embeddings, false);
    ConfigFields nested = fields.nested("text_config");
    read_text(nested, family, c);
  } else {
    read_text(fields, family, c);
  }
  fields.finish();
  return c;
}

MoeConfig moe_config(const QwenConfig& c) {
  MoeConfig moe;
  moe.hidden_size = c.hidden_size;
  moe.intermediate_size = c.moe_intermediate_size;
  moe.num_experts = c.num_experts;
  moe.top_k = c.num_experts_per_tok;
  moe.renormalize = c.norm_topk_prob;
  moe.w1 = "gate_proj";
  moe.w3 = "up_proj";
  moe.w2 = "down_proj";
  moe.stacked_w1_w3 = "experts.gate_up_proj";
  moe.stacked_w2 = "experts.down_proj";
  MlpConfig shared;
  shared.hidden_size = c.hidden_size;
  shared.intermediate_size = c.shared_expert_intermediate_size;
  moe.shared = shared;
  moe.shared_prefix = "shared_expert";
  moe.shared_gate = "shared_expert_gate";
  return moe;
}

std::unique_ptr<DecoderBlock> make_block(const QwenConfig& c, const BlockContext& context) {
  const WeightLoader& loader = context.layer;
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(loader, "input_layernorm", c.hidden_size, c.rms_norm_eps, 1));
  if (c.is_attention(context.index)) {
    block->add("full_attention", std::make_unique<Attention>(c.attention, loader.scoped("self_attn")));
  } else {
    GatedDeltaNetConfig delta = c.delta;
    // GGUF has all of the family's projections in one order, whatever the checkpoint had.
    if (loader.has("linear_attn.in_proj_qkv.weight")) delta.projections = DeltaProjections::kTogether;
    block->add("gdn", std::make_unique<GatedDeltaNet>(delta, loader.scoped("linear_attn")));
  }
  block->begin_half(RmsNorm(loader, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps, 1));
  const WeightLoader mlp_loader = loader.scoped("mlp");
  if (c.has_experts(context.index)) {
    block->add("moe", std::make_unique<MoeBlock>(moe_config(c), mlp_loader), {}, layer_name_of(mlp_loader));
  } else {
    MlpConfig mlp;
    mlp.hidden_size = c.hidden_size;
    mlp.intermediate_size = c.intermediate_size;
    block->add("mlp", std::make_unique<Mlp>(mlp, mlp_loader), {}, layer_name_of(mlp_loader));
  }
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context, const Family& family) {
  const QwenConfig c = read_config(context.config_json, context.config_path, family);
  DecoderConfig decoder = decoder_config(family.model_type, c, c.rms_norm_eps);
  decoder.norm_weight_offset = 1;
  decoder.base = text_part_base(context.weights);
  decoder.ignored = {{"mtp", "heads that predict several tokens are not run"},
                     {"model.visual", "the vision tower is not run"}};
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

ModelFamily family(const char* name, std::vector<std::string> classes, const Family& family) {
  return {name,
          std::move(classes),
          [family](ModelLoadContext& context) { return load(context, family); },
          {},
          /*runs_on_cuda=*/true};
}

constexpr Family kNext{"qwen3_next", ExpertLayers::kSome, DeltaProjections::kByKeyHead};
constexpr Family kDense{"qwen3_5", ExpertLayers::kNone, DeltaProjections::kTogether};
constexpr Family kMoe{"qwen3_5_moe", ExpertLayers::kAll, DeltaProjections::kTogether};

const RegisterModel kQwen3Next(family("qwen3_next", {"Qwen3NextForCausalLM"}, kNext));
const RegisterModel kQwen35(family("qwen3_5", {"Qwen3_5ForConditionalGeneration"}, kDense));
const RegisterModel kQwen35Text(family("qwen3_5_text", {"Qwen3_5ForCausalLM"}, kDense));
const RegisterModel kQwen35Moe(family("qwen3_5_moe", {"Qwen3_5MoeForConditionalGeneration"}, kMoe));
const RegisterModel kQwen35MoeText(family("qwen3_5_moe_text", {"Qwen3_5MoeForCausalLM"}, kMoe));

}  // namespace
}  // namespace coluber
