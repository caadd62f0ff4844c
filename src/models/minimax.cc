// SPDX-License-Identifier: Apache-2.0
//
// MiniMax (MiniMax-Text-01, 2025; MiniMax-M1): layers of lightning attention or softmax attention, each followed by
// experts: h = alpha * r + beta * f(norm(x)), for the attention and for the experts, where the residual r is the normed
// input (postnorm) or x. `minimax` is transformers' config, `minimax_text_01` and `minimax_m1` the original one; the
// tensors are the same.
#include <algorithm>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "kernels/elementwise/scale.h"
#include "layers/attention.h"
#include "layers/linear_attention.h"
#include "layers/moe.h"
#include "layers/norm.h"
#include "models/decoder.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

struct ResidualScale {
  double alpha = 1.0;  // of the residual
  double beta = 1.0;   // of the layer's output
};

struct MiniMaxConfig {
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  int64_t num_local_experts = 0, num_experts_per_tok = 0;
  std::optional<int64_t> sliding_window;
  double rms_norm_eps = 0;
  std::optional<bool> tie_word_embeddings;
  ResidualScale linear_attn, full_attn, mlp;
  bool postnorm = true;
  LightningSlopes slopes = LightningSlopes::kTransformers;
  std::vector<std::string> layer_types;
  std::string hidden_act;
  RopeConfig rope;

  bool is_linear(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "linear_attention"; }
};

void read_residual_scales(ConfigFields& fields, MiniMaxConfig& c) {
  fields.alias("linear_attn_alpha_factor", {"layernorm_linear_attention_alpha"})
      .alias("linear_attn_beta_factor", {"layernorm_linear_attention_beta"})
      .alias("full_attn_alpha_factor", {"layernorm_full_attention_alpha"})
      .alias("full_attn_beta_factor", {"layernorm_full_attention_beta"})
      .alias("mlp_alpha_factor", {"layernorm_mlp_alpha"})
      .alias("mlp_beta_factor", {"layernorm_mlp_beta"});
  fields.optional("linear_attn_alpha_factor", &c.linear_attn.alpha, 1.0, finite())
      .optional("linear_attn_beta_factor", &c.linear_attn.beta, 1.0, finite())
      .optional("full_attn_alpha_factor", &c.full_attn.alpha, 1.0, finite())
      .optional("full_attn_beta_factor", &c.full_attn.beta, 1.0, finite())
      .optional("mlp_alpha_factor", &c.mlp.alpha, 1.0, finite())
      .optional("mlp_beta_factor", &c.mlp.beta, 1.0, finite());
}

// transformers' own words.
void read_layer_types(ConfigFields& fields, MiniMaxConfig& c) {
  fields.optional("layer_types", &c.layer_types, {}, one_of({"linear_attention", "full_attention"}));
  if (!c.layer_types.empty() || !fields.ok()) return;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    c.layer_types.push_back(i % 2 == 0 ? "full_attention" : "linear_attention");  // its default
}

// The original config: a number a layer, and what only it can say.
void read_original(ConfigFields& fields, MiniMaxConfig& c) {
  std::vector<int64_t> types;
  int64_t shared_intermediate_size = 0;
  fields.alias("attn_type_list", {"decoder_attention_types"});
  fields.required("attn_type_list", &types, one_of_numbers({0, 1}))
      .optional("postnorm", &c.postnorm, false)
      .optional("shared_intermediate_size", &shared_intermediate_size, 0, at_least(0))
      .check(shared_intermediate_size == 0,
             "shared_intermediate_size must be 0: experts that every token shares are not supported in this family");
  for (int64_t type : types) c.layer_types.push_back(type == 0 ? "linear_attention" : "full_attention");
  c.slopes = LightningSlopes::kAlibi;
}

MiniMaxConfig read_config(const std::string& text, const std::string& path, bool original) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  MiniMaxConfig c;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("num_attention_heads", &c.num_attention_heads, heads_bound());
  fields.optional("num_key_value_heads", &c.num_key_value_heads, c.num_attention_heads, heads_bound())
      .optional("head_dim", &c.head_dim, std::max<int64_t>(c.hidden_size / c.num_attention_heads, 1), head_dim_bound())
      .optional("num_local_experts", &c.num_local_experts, 8, experts_bound())
      .optional("num_experts_per_tok", &c.num_experts_per_tok, 2, positive())
      .optional("max_position_embeddings", &c.max_position_embeddings, 4096 * 32, positive())
      .optional("sliding_window", &c.sliding_window, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-5, positive_finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings)
      .optional("hidden_act", &c.hidden_act, "silu", one_of({"silu", "swish"}));
  if (original)
    read_original(fields, c);
  else
    read_layer_types(fields, c);
  read_residual_scales(fields, c);
  c.rope = read_rope_parameters(fields, 1000000.0, c.head_dim);
  fields
      .check([&] { return static_cast<int64_t>(c.layer_types.size()) == c.num_hidden_layers; },
             original ? "attn_type_list must name num_hidden_layers layers"
                      : "layer_types must name num_hidden_layers layers")
      .check([&] { return c.num_attention_heads * c.head_dim <= kMostWidth; },
             fmt::format("num_attention_heads * head_dim must be at most {}", kMostWidth))
      .check([&] { return c.num_attention_heads % c.num_key_value_heads == 0; },
             "num_key_value_heads must divide num_attention_heads")
      .check([&] { return c.sliding_window.value_or(c.max_position_embeddings) >= c.max_position_embeddings; },
             "sliding_window must be null or at least max_position_embeddings: attention to a part of the past is not "
             "supported")
      .check([&] { return c.num_experts_per_tok <= c.num_local_experts; },
             "num_experts_per_tok must be at most num_local_experts")
      .finish();
  return c;
}

AttentionConfig attention_config(const MiniMaxConfig& c) {
  AttentionConfig attention;
  attention.hidden_size = c.hidden_size;
  attention.num_heads = c.num_attention_heads;
  attention.num_kv_heads = c.num_key_value_heads;
  attention.head_dim = c.head_dim;
  attention.rope = c.rope;
  return attention;
}

LinearAttentionConfig linear_config(const MiniMaxConfig& c, int64_t layer) {
  LinearAttentionConfig linear;
  linear.hidden_size = c.hidden_size;
  linear.num_heads = c.num_attention_heads;
  linear.head_dim = c.head_dim;
  linear.layer = layer;
  linear.num_layers = c.num_hidden_layers;
  linear.slopes = c.slopes;
  return linear;
}

MoeConfig moe_config(const MiniMaxConfig& c) {
  MoeConfig moe;
  moe.hidden_size = c.hidden_size;
  moe.intermediate_size = c.intermediate_size;
  moe.num_experts = c.num_local_experts;
  moe.top_k = c.num_experts_per_tok;
  return moe;
}

class MiniMaxBlock final : public DecoderBlock {
 public:
  MiniMaxBlock(const MiniMaxConfig& c, const BlockContext& context)
      : hidden_size_(c.hidden_size),
        postnorm_(c.postnorm),
        attn_scale_(c.is_linear(context.index) ? c.linear_attn : c.full_attn),
        mlp_scale_(c.mlp),
        input_layernorm_(context.layer, "input_layernorm", c.hidden_size, c.rms_norm_eps),
        post_attention_layernorm_(context.layer, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps) {
    WeightLoader self_attn = context.layer.scoped("self_attn");
    WeightLoader moe = context.layer.scoped("block_sparse_moe");
    if (c.is_linear(context.index))
      linear_ = std::make_unique<LinearAttention>(linear_config(c, context.index), self_attn);
    else
      full_ = std::make_unique<Attention>(attention_config(c), self_attn);
    experts_ = std::make_unique<MoeBlock>(moe_config(c), moe);
    experts_name_ = context.layer.full_name("block_sparse_moe");
  }

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override {
    const int64_t tokens = batch.num_tokens();
    WorkspaceScope scope(*batch.workspace);
    float* normed = batch.workspace->take<float>(tokens * hidden_size_);  // [T, D]
    float* y = batch.workspace->take<float>(tokens * hidden_size_);       // [T, D]
    input_layernorm_.forward(batch, stream.x, tokens, normed);
    if (linear_)
      linear_->forward(batch, normed, y);
    else
      full_->forward(batch, normed, y);
    mix(batch, attn_scale_, normed, y, stream.x);
    post_attention_layernorm_.forward(batch, stream.x, tokens, normed);
    experts_->forward(batch, normed, y);
    mix(batch, mlp_scale_, normed, y, stream.x);
  }

  void describe(std::vector<LayerInfo>& layers) const override {
    if (linear_)
      layers.push_back({linear_->layer_name(), "linear_attention", linear_.get()});
    else
      layers.push_back({full_->layer_name(), "full_attention", full_.get()});
    layers.push_back({experts_name_, "moe", nullptr});
  }

 private:
  // x = alpha * residual + beta * y
  void mix(const ForwardBatch& batch, const ResidualScale& by, const float* normed, const float* y, float* x) const {
    ScaleArgs args{postnorm_ ? normed : x, hidden_size_, x, hidden_size_, batch.num_tokens(), hidden_size_};
    args.factor = static_cast<float>(by.alpha);
    if (postnorm_ || by.alpha != 1) scale()(args, batch);
    args.x = y;
    args.factor = static_cast<float>(by.beta);
    args.accumulate = true;
    scale()(args, batch);
  }

  int64_t hidden_size_;
  bool postnorm_;
  ResidualScale attn_scale_, mlp_scale_;
  RmsNorm input_layernorm_, post_attention_layernorm_;
  std::unique_ptr<Attention> full_;  // one of the two
  std::unique_ptr<LinearAttention> linear_;
  std::unique_ptr<MoeBlock> experts_;
  std::string experts_name_;
};

std::unique_ptr<Model> load(ModelLoadContext& context, const char* architecture, bool original) {
  const MiniMaxConfig c = read_config(context.config_json, context.config_path, original);
  DecoderConfig decoder;
  decoder.architecture = architecture;
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.hidden_size;
  decoder.num_layers = c.num_hidden_layers;
  decoder.max_position_embeddings = c.max_position_embeddings;
  decoder.norm_eps = c.rms_norm_eps;
  // Without a word on it, the head is the checkpoint's own where it has one.
  decoder.tied = c.tie_word_embeddings.value_or(!context.weights.contains("lm_head.weight"));
  return std::make_unique<Decoder>(context, decoder,
                                   [&](const BlockContext& block) { return std::make_unique<MiniMaxBlock>(c, block); });
}

ModelFamily family(const char* model_type, const char* architecture, bool original) {
  return {model_type,
          {architecture},
          [=](ModelLoadContext& context) { return load(context, model_type, original); },
          {},
          /*runs_on_cuda=*/true};
}

const RegisterModel kMiniMax(family("minimax", "MiniMaxForCausalLM", false));
const RegisterModel kMiniMaxText01(family("minimax_text_01", "MiniMaxText01ForCausalLM", true));
const RegisterModel kMiniMaxM1(family("minimax_m1", "MiniMaxM1ForCausalLM", true));

}  // namespace
}  // namespace coluber
