// SPDX-License-Identifier: Apache-2.0
//
// Bailing's linear hybrids. `bailing_moe_linear` (Ring-linear 2.0): lightning attention with a layer of softmax
// attention at the end of every group. `bailing_hybrid` (Ling and Ring 2.5): the same with latent attention. After the
// first layers' MLPs come experts with a sigmoid router in groups and a shared expert. x = x +
// attention(input_layernorm(x)); x = x + mlp(post_attention_layernorm(x)). Decays follow the layer's number from 0, as
// in training; the modelling code published beside the checkpoints is off by one there.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "kernels/linear/gated_linear_attention.h"
#include "layers/attention.h"
#include "layers/latent_attention.h"
#include "layers/linear_attention.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/recurrent_layer.h"
#include "models/activation_field.h"
#include "models/decoder.h"
#include "models/expert_fields.h"
#include "models/residual_block.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"

namespace coluber {
namespace {

constexpr const char* kHybridClass = "BailingMoeV2_5ForCausalLM";

struct BailingConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
  int64_t intermediate_size = 0, first_k_dense_replace = 0, layer_group_size = 0, num_nextn_predict_layers = 0;
  double rms_norm_eps = 0;
  Activation hidden_act = Activation::kSilu;
  bool tie_word_embeddings = false;
  LinearAttentionConfig linear;
  AttentionConfig softmax;
  std::optional<LatentAttentionConfig> latent;  // in place of `softmax`
  std::optional<MoeConfig> moe;

  // Layers behind the last whole group have no lightning attention either.
  bool is_linear(int64_t layer) const {
    return (layer + 1) % layer_group_size != 0 && layer < num_hidden_layers / layer_group_size * layer_group_size;
  }
};

void read_sizes(ConfigFields& fields, BailingConfig& c) {
  bool use_rmsnorm = true, norm_head = false;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("layer_group_size", &c.layer_group_size, positive())
      .optional("max_position_embeddings", &c.max_position_embeddings, 32768, positive())
      .optional("first_k_dense_replace", &c.first_k_dense_replace, 1, at_least(0))
      .optional("num_nextn_predict_layers", &c.num_nextn_predict_layers, 0, between(0, 64))
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-6, positive_finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false)
      .optional("use_rmsnorm", &use_rmsnorm, true)
      .optional("norm_head", &norm_head, false)
      .check(use_rmsnorm, "use_rmsnorm must be true: other norms are not supported in this family")
      .check(!norm_head, "norm_head must be false: a normed head is not supported in this family");
  c.hidden_act = read_activation(fields, "hidden_act", "silu");
}

struct HeadFields {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool qkv_bias = false, out_bias = false, qk_norm = false;
};

HeadFields read_heads(ConfigFields& fields, int64_t hidden_size) {
  HeadFields heads;
  fields.required("num_attention_heads", &heads.num_heads, heads_bound());
  fields.optional("num_key_value_heads", &heads.num_kv_heads, heads.num_heads, heads_bound())
      .optional("head_dim", &heads.head_dim, std::max<int64_t>(hidden_size / heads.num_heads, 1), head_dim_bound())
      .optional("use_qkv_bias", &heads.qkv_bias, false)
      .optional("use_bias", &heads.out_bias, false)
      .optional("use_qk_norm", &heads.qk_norm, true)
      .check([&] { return heads.num_heads % heads.num_kv_heads == 0; },
             "num_key_value_heads must divide num_attention_heads")
      .check([&] { return heads.num_heads * heads.head_dim <= kMostWidth; },
             fmt::format("num_attention_heads * head_dim must be at most {}", kMostWidth))
      .check([&] { return heads.head_dim <= kMaxLinearKeyDim; },
             fmt::format("head_dim must be at most {}", kMaxLinearKeyDim));
  return heads;
}

void read_linear(ConfigFields& fields, const HeadFields& heads, const RopeConfig& rope, BailingConfig& c) {
  LinearAttentionConfig& linear = c.linear;
  bool linear_rope = true;
  int64_t kv_heads = 0;
  fields.required("group_norm_size", &linear.norm_groups, positive())
      .optional("linear_silu", &linear.silu, false)
      .optional("linear_rope", &linear_rope, true)
      .optional("num_kv_heads_for_linear_attn", &kv_heads, heads.num_heads, at_least(0))
      .check([&] { return kv_heads == 0 || kv_heads == heads.num_heads; },
             "num_kv_heads_for_linear_attn must be 0 or num_attention_heads")
      .check([&] { return heads.num_heads * heads.head_dim % linear.norm_groups == 0; },
             "group_norm_size must divide num_attention_heads * head_dim");
  linear.hidden_size = c.hidden_size;
  linear.num_heads = heads.num_heads;
  linear.head_dim = heads.head_dim;
  linear.num_layers = c.num_hidden_layers;
  linear.norm_eps = c.rms_norm_eps;
  linear.slopes = LightningSlopes::kAlibi;
  linear.qkv_by_head = false;
  linear.scale = 1.0 / std::sqrt(static_cast<double>(heads.head_dim));
  linear.qkv_bias = heads.qkv_bias;
  linear.out_bias = heads.out_bias;
  linear.qk_norm = heads.qk_norm;
  if (linear_rope) linear.rope = rope;
  linear.qkv_proj = "query_key_value";
  linear.output_gate = "g_proj";
  linear.out_proj = "dense";
  linear.norm = "g_norm";
  linear.q_norm = "query_layernorm";
  linear.k_norm = "key_layernorm";
}

void set_softmax(const HeadFields& heads, const RopeConfig& rope, BailingConfig& c) {
  AttentionConfig& softmax = c.softmax;
  softmax.hidden_size = c.hidden_size;
  softmax.num_heads = heads.num_heads;
  softmax.num_kv_heads = heads.num_kv_heads;
  softmax.head_dim = heads.head_dim;
  softmax.rope = rope;
  if (heads.qk_norm) softmax.qk_norm_eps = c.rms_norm_eps;
  softmax.qkv_bias = heads.qkv_bias;
  softmax.out_bias = heads.out_bias;
  softmax.qkv_proj = "query_key_value";
  softmax.out_proj = "dense";
  softmax.q_norm = "query_layernorm";
  softmax.k_norm = "key_layernorm";
}

void read_latent(ConfigFields& fields, const HeadFields& heads, RopeConfig rope, BailingConfig& c) {
  LatentAttentionConfig latent;
  latent.hidden_size = c.hidden_size;
  latent.num_heads = heads.num_heads;
  fields.optional("q_lora_rank", &latent.q_lora_rank, width_bound())
      .required("kv_lora_rank", &latent.kv_lora_rank, width_bound())
      .required("qk_nope_head_dim", &latent.qk_nope_head_dim, head_dim_bound())
      .required("qk_rope_head_dim", &latent.qk_rope_head_dim, head_dim_bound())
      .required("v_head_dim", &latent.v_head_dim, head_dim_bound())
      .optional("rope_interleave", &rope.interleaved, true)
      .check([&] { return latent.qk_rope_head_dim % 2 == 0; }, "qk_rope_head_dim must be even: it is rotated")
      .check([&] { return heads.num_heads * (latent.qk_nope_head_dim + latent.v_head_dim) <= kMostWidth; },
             fmt::format("num_attention_heads * (qk_nope_head_dim + v_head_dim) must be at most {}", kMostWidth))
      .check(heads.qkv_bias == heads.out_bias,
             "use_qkv_bias and use_bias must be equal: latent attention has biases everywhere or nowhere");
  rope.rotary_dim = latent.qk_rope_head_dim;
  latent.rope = rope;
  latent.norm_eps = c.rms_norm_eps;
  latent.bias = heads.qkv_bias;
  latent.out_proj = "dense";
  // As in DeepSeek-V2: scores are sharpened with the context that YaRN stretches to.
  const double m = rope.type == RopeType::kYarn ? 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1.0 : 1.0;
  latent.scale = m * m / std::sqrt(static_cast<double>(latent.qk_nope_head_dim + latent.qk_rope_head_dim));
  c.latent = latent;
}

void read_experts(ConfigFields& fields, bool grouped, BailingConfig& c) {
  MoeConfig moe;
  std::optional<int64_t> num_experts;
  int64_t num_shared = 0, shared_size = 0;
  bool bias = grouped;
  std::string score;
  fields.optional("num_experts", &num_experts, experts_bound());
  if (!num_experts) return;
  moe.num_experts = *num_experts;
  fields.required("num_experts_per_tok", &moe.top_k, experts_bound())
      .required("moe_intermediate_size", &moe.intermediate_size, width_bound());
  fields.optional("moe_shared_expert_intermediate_size", &shared_size, moe.intermediate_size, width_bound())
      .optional("num_shared_experts", &num_shared, 0, between(0, 1 << 10))
      .optional("n_group", &moe.num_groups, grouped ? 8 : 1, experts_bound())
      .optional("topk_group", &moe.topk_groups, grouped ? 4 : 1, experts_bound())
      .optional("norm_topk_prob", &moe.renormalize, true)
      .optional("routed_scaling_factor", &moe.scale, 1.0, positive_finite())
      .optional("moe_router_enable_expert_bias", &bias, grouped)
      .optional("score_function", &score, grouped ? "sigmoid" : "softmax", one_of({"sigmoid", "softmax"}))
      .check([&] { return shared_size * num_shared <= kMostWidth; },
             fmt::format("moe_shared_expert_intermediate_size * num_shared_experts must be at most {}", kMostWidth));
  check_expert_groups(fields, {moe.num_experts, moe.top_k, moe.num_groups, moe.topk_groups, "num_experts"});
  moe.hidden_size = c.hidden_size;
  moe.score = score == "softmax" ? RouterScore::kSoftmax : RouterScore::kSigmoid;
  moe.renormalize = moe.renormalize && moe.top_k > 1;
  moe.epsilon = 1e-20;
  moe.activation = c.hidden_act;
  if (bias) moe.selection_bias = "gate.expert_bias";
  moe.w1 = "gate_proj";
  moe.w3 = "up_proj";
  moe.w2 = "down_proj";
  if (num_shared > 0) {
    moe.shared.emplace();
    moe.shared->hidden_size = c.hidden_size;
    moe.shared->intermediate_size = shared_size * num_shared;
    moe.shared->activation = c.hidden_act;
  }
  c.moe = moe;
}

// Other models say the same model_type and have other layers.
void check_class(const Json& json, ConfigFields& fields) {
  const Json* list = json.find("architectures");
  if (list == nullptr || !list->is_array() || list->as_array().empty()) return;
  for (const Json& name : list->as_array())
    if (name.is_string() && name.as_string() == kHybridClass) return;
  fields.problem("architectures", fmt::format("expected {}: other classes of this model_type have other layers and are "
                                              "not supported",
                                              kHybridClass));
}

// The first generation's experts have neither groups nor a bias.
bool is_first_generation(const Json& json) {
  const Json* list = json.find("architectures");
  if (list == nullptr || !list->is_array()) return false;
  return std::any_of(list->as_array().begin(), list->as_array().end(), [](const Json& name) {
    return name.is_string() && name.as_string() == "BailingMoeLinearForCausalLM";
  });
}

BailingConfig read_config(const std::string& text, const std::string& path, bool hybrid) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  BailingConfig c;
  if (hybrid) check_class(json, fields);
  read_sizes(fields, c);
  const HeadFields heads = read_heads(fields, c.hidden_size);
  const RopeConfig rope = read_rope_parameters(fields, 600000.0, heads.head_dim, 0.5);
  read_linear(fields, heads, rope, c);
  if (hybrid)
    read_latent(fields, heads, rope, c);
  else
    set_softmax(heads, rope, c);
  read_experts(fields, !is_first_generation(json), c);
  fields.finish();
  return c;
}

void add_attention(ResidualBlock& block, const BailingConfig& c, const BlockContext& context) {
  const WeightLoader loader = context.layer.scoped("attention");
  if (c.is_linear(context.index)) {
    LinearAttentionConfig linear = c.linear;
    linear.layer = context.index;
    block.add("linear_attention", std::make_unique<LinearAttention>(linear, loader));
  } else if (c.latent) {
    block.add("full_attention", std::make_unique<LatentAttention>(*c.latent, loader));
  } else {
    block.add("full_attention", std::make_unique<Attention>(c.softmax, loader));
  }
}

void add_feed_forward(ResidualBlock& block, const BailingConfig& c, const BlockContext& context) {
  const WeightLoader loader = context.layer.scoped("mlp");
  if (c.moe && context.index >= c.first_k_dense_replace) {
    block.add("moe", std::make_unique<MoeBlock>(*c.moe, loader), {}, layer_name_of(loader));
    return;
  }
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = c.intermediate_size;
  mlp.activation = c.hidden_act;
  block.add("mlp", std::make_unique<Mlp>(mlp, loader), {}, layer_name_of(loader));
}

std::unique_ptr<DecoderBlock> make_block(const BailingConfig& c, const BlockContext& context) {
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(context.layer, "input_layernorm", c.hidden_size, c.rms_norm_eps));
  add_attention(*block, c, context);
  block->begin_half(RmsNorm(context.layer, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps));
  add_feed_forward(*block, c, context);
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context, const char* model_type, bool hybrid) {
  const BailingConfig c = read_config(context.config_json, context.config_path, hybrid);
  DecoderConfig decoder = decoder_config(model_type, c, c.rms_norm_eps);
  decoder.embed_tokens = "word_embeddings";
  for (int64_t i = 0; i < c.num_nextn_predict_layers; ++i)
    decoder.ignored.push_back(
        {fmt::format("model.layers.{}.", c.num_hidden_layers + i), "a multi-token prediction layer"});
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kBailingLinear({"bailing_moe_linear",
                                    {"BailingMoeLinearV2ForCausalLM", "BailingMoeLinearForCausalLM"},
                                    [](ModelLoadContext& context) {
                                      return load(context, "bailing_moe_linear", false);
                                    },
                                    {},
                                    /*runs_on_cuda=*/true});
const RegisterModel kBailingHybrid({"bailing_hybrid",
                                    {kHybridClass},
                                    [](ModelLoadContext& context) { return load(context, "bailing_hybrid", true); },
                                    {},
                                    /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
