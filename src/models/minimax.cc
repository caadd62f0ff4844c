// SPDX-License-Identifier: Apache-2.0
//
// MiniMax (MiniMax-Text-01, 2025): layers of lightning attention or softmax attention, each followed by experts. The
// residual is the *normed* input, scaled: h = alpha * norm(x) + beta * f(norm(x)), for the attention and for the
// experts.
#include <algorithm>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/embedding.h"
#include "layers/linear_attention.h"
#include "layers/lm_head.h"
#include "layers/moe.h"
#include "layers/norm.h"
#include "layers/weight_loader.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

struct ResidualScale {
  double alpha = 1.0;  // of the normed input
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
  std::vector<std::string> layer_types;
  std::string hidden_act;
  RopeConfig rope;

  bool is_linear(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "linear_attention"; }
};

void read_residual_scales(ConfigFields& fields, MiniMaxConfig& c) {
  fields.optional("linear_attn_alpha_factor", &c.linear_attn.alpha, 1.0, finite())
      .optional("linear_attn_beta_factor", &c.linear_attn.beta, 1.0, finite())
      .optional("full_attn_alpha_factor", &c.full_attn.alpha, 1.0, finite())
      .optional("full_attn_beta_factor", &c.full_attn.beta, 1.0, finite())
      .optional("mlp_alpha_factor", &c.mlp.alpha, 1.0, finite())
      .optional("mlp_beta_factor", &c.mlp.beta, 1.0, finite());
}

MiniMaxConfig read_config(const std::string& text, const std::string& path) {
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
      .optional("hidden_act", &c.hidden_act, "silu", one_of({"silu", "swish"}))
      .optional("layer_types", &c.layer_types, {}, one_of({"linear_attention", "full_attention"}));
  read_residual_scales(fields, c);
  if (c.layer_types.empty() && fields.ok())
    for (int64_t i = 0; i < c.num_hidden_layers; ++i)
      c.layer_types.push_back(i % 2 == 0 ? "full_attention" : "linear_attention");  // transformers' default
  c.rope = read_rope_parameters(fields, 1000000.0, c.head_dim);
  fields
      .check([&] { return static_cast<int64_t>(c.layer_types.size()) == c.num_hidden_layers; },
             "layer_types must name num_hidden_layers layers")
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

struct MiniMaxBlock {
  RmsNorm input_layernorm;
  std::unique_ptr<Attention> full;  // one of the two
  std::unique_ptr<LinearAttention> linear;
  RmsNorm post_attention_layernorm;
  std::unique_ptr<MoeBlock> experts;
  ResidualScale attn_scale;

  MiniMaxBlock(WeightLoader loader, const MiniMaxConfig& c, int64_t layer)
      : input_layernorm(loader, "input_layernorm", c.hidden_size, c.rms_norm_eps),
        post_attention_layernorm(loader, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps),
        attn_scale(c.is_linear(layer) ? c.linear_attn : c.full_attn) {
    WeightLoader self_attn = loader.scoped("self_attn");
    WeightLoader moe = loader.scoped("block_sparse_moe");
    if (c.is_linear(layer))
      linear = std::make_unique<LinearAttention>(linear_config(c, layer), self_attn);
    else
      full = std::make_unique<Attention>(attention_config(c), self_attn);
    experts = std::make_unique<MoeBlock>(moe_config(c), moe);
  }
};

// x = alpha * residual + beta * y
void mix(const ResidualScale& scale, const float* residual, const float* y, float* x, int64_t count) {
  const auto alpha = static_cast<float>(scale.alpha);
  const auto beta = static_cast<float>(scale.beta);
  for (int64_t i = 0; i < count; ++i) x[i] = residual[i] * alpha + y[i] * beta;
}

// Without a word on it, the head is the checkpoint's own where it has one.
bool is_tied(const WeightLoader& loader, const MiniMaxConfig& c) {
  return c.tie_word_embeddings.value_or(!loader.has("lm_head.weight"));
}

class MiniMax final : public Model {
 public:
  MiniMax(ModelLoadContext& context, const MiniMaxConfig& c)
      : config_(c),
        loader_(context),
        base_(loader_.scoped("model")),
        embed_tokens_(base_, "embed_tokens", c.vocab_size, c.hidden_size, is_tied(loader_, c)),
        norm_(base_, "norm", c.hidden_size, c.rms_norm_eps),
        lm_head_(loader_, "lm_head", embed_tokens_, is_tied(loader_, c)) {
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) add_layer(i);
    info_.architecture = "minimax";
    info_.vocab_size = c.vocab_size;
    info_.hidden_size = c.hidden_size;
    info_.num_layers = c.num_hidden_layers;
    info_.max_position_embeddings = c.max_position_embeddings;
    loader_.finish(info_);
  }

  const ModelInfo& info() const noexcept override { return info_; }

  void forward(const ForwardBatch& batch) override {
    const int64_t tokens = batch.num_tokens();
    const int64_t d = config_.hidden_size;
    WorkspaceScope scope(*batch.workspace);
    float* x = batch.workspace->take<float>(tokens * d);       // [T, D]
    float* normed = batch.workspace->take<float>(tokens * d);  // [T, D]
    float* y = batch.workspace->take<float>(tokens * d);       // [T, D]
    embed_tokens_.forward(batch, x);
    for (size_t i = 0; i < layers_.size(); ++i) {
      MiniMaxBlock& layer = *layers_[i];
      batch.record_hidden(static_cast<int>(i), x, d);
      layer.input_layernorm.forward(batch, x, tokens, normed);
      if (layer.linear)
        layer.linear->forward(batch, normed, y);
      else
        layer.full->forward(batch, normed, y);
      mix(layer.attn_scale, normed, y, x, tokens * d);
      layer.post_attention_layernorm.forward(batch, x, tokens, normed);
      layer.experts->forward(batch, normed, y);
      mix(config_.mlp, normed, y, x, tokens * d);
    }
    norm_.forward(batch, x, tokens, normed);
    batch.record_hidden(static_cast<int>(layers_.size()), normed, d);
    lm_head_.forward(batch, normed);
  }

 private:
  void add_layer(int64_t i) {
    WeightLoader loader = base_.scoped("layers." + std::to_string(i));
    layers_.push_back(std::make_unique<MiniMaxBlock>(loader, config_, i));
    const MiniMaxBlock& layer = *layers_.back();
    if (layer.linear)
      info_.layers.push_back({layer.linear->layer_name(), "linear_attention", layer.linear.get()});
    else
      info_.layers.push_back({layer.full->layer_name(), "full_attention", layer.full.get()});
    info_.layers.push_back({loader.full_name("block_sparse_moe"), "moe", nullptr});
  }

  MiniMaxConfig config_;
  WeightLoader loader_;
  WeightLoader base_;
  Embedding embed_tokens_;
  std::vector<std::unique_ptr<MiniMaxBlock>> layers_;
  RmsNorm norm_;
  LmHead lm_head_;
  ModelInfo info_;
};

std::unique_ptr<Model> load(ModelLoadContext& context) {
  return std::make_unique<MiniMax>(context, read_config(context.config_json, context.config_path));
}

const RegisterModel kMiniMax({"minimax", {"MiniMaxForCausalLM"}, load});

}  // namespace
}  // namespace coluber
