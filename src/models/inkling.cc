// SPDX-License-Identifier: Apache-2.0
//
// Inkling (Thinking Machines, 2026), the text part: attention with learnt biases by distance, over a window or over all
// tokens, then an MLP or experts; keys, values and what either half gives run through short convolutions. The shared
// experts compete with nobody and are weighed together with the chosen ones.
//
//   x = x + sconv(attention(input_layernorm(x))); x = x + sconv(mlp(post_attention_layernorm(x)))
#include <algorithm>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/norm.h"
#include "layers/recurrent_layer.h"
#include "layers/relative_attention.h"
#include "layers/residual_convs.h"
#include "models/activation_field.h"
#include "models/decoder.h"
#include "models/inkling_names.h"
#include "models/sizes.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

enum Conv : size_t { kKeyConv, kValueConv, kAttentionConv, kMlpConv };  // as the cache of transformers numbers them

struct Heads {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

struct InklingConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
  Heads full, sliding;
  int64_t sliding_window_size = 0, d_rel = 0, rel_extent = 0, conv_kernel_size = 0, intermediate_size = 0;
  int64_t moe_intermediate_size = 0, n_routed_experts = 0, num_experts_per_tok = 0, n_shared_experts = 0;
  double rms_norm_eps = 0, route_scale = 0, logits_mup_width_multiplier = 0, log_scaling_alpha = 0;
  std::optional<double> log_scaling_n_floor;
  Activation hidden_act = Activation::kSilu;
  std::vector<std::string> layer_types, mlp_layer_types;
  int64_t unpadded_vocab_size = 0;  // tokens that the head scores
  bool is_container = false;        // the text part of a model that hears and sees

  bool is_sliding(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "hybrid_sliding"; }
  bool is_sparse(int64_t layer) const { return mlp_layer_types[static_cast<size_t>(layer)] == "sparse"; }
};

void read_heads(ConfigFields& fields, const std::string& prefix, Heads& heads, const Heads& defaults) {
  const std::string names[] = {prefix + "num_attention_heads", prefix + "num_key_value_heads", prefix + "head_dim"};
  fields.optional(names[0], &heads.heads, defaults.heads, heads_bound())
      .optional(names[1], &heads.kv_heads, defaults.kv_heads, heads_bound())
      .optional(names[2], &heads.head_dim, defaults.head_dim, head_dim_bound())
      .check([&] { return heads.heads % heads.kv_heads == 0; }, names[1] + " must divide " + names[0])
      .check([&] { return heads.heads * heads.head_dim <= kMostWidth; },
             fmt::format("{} * {} must be at most {}", names[0], names[2], kMostWidth));
}

void read_layer_types(ConfigFields& fields, InklingConfig& c) {
  std::vector<int64_t> local;
  int64_t dense = 0;
  fields.optional("layer_types", &c.layer_types, {}, one_of({"hybrid", "hybrid_sliding"}))
      .optional("mlp_layer_types", &c.mlp_layer_types, {}, one_of({"dense", "sparse"}))
      .optional("local_layer_ids", &local, {}, at_least(0))
      .optional("dense_mlp_idx", &dense, 0, at_least(0));
  if (!fields.ok()) return;
  if (!fields.has("layer_types")) {
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
      const bool slides =
          fields.has("local_layer_ids") ? std::find(local.begin(), local.end(), i) != local.end() : (i + 1) % 6 != 0;
      c.layer_types.push_back(slides ? "hybrid_sliding" : "hybrid");
    }
  }
  if (!fields.has("mlp_layer_types")) {
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.mlp_layer_types.push_back(i < dense ? "dense" : "sparse");
  }
  fields
      .check([&] { return static_cast<int64_t>(c.layer_types.size()) == c.num_hidden_layers; },
             "layer_types must name num_hidden_layers layers")
      .check([&] { return static_cast<int64_t>(c.mlp_layer_types.size()) == c.num_hidden_layers; },
             "mlp_layer_types must name num_hidden_layers layers");
}

void read_moe(ConfigFields& fields, InklingConfig& c) {
  fields.alias("n_routed_experts", {"num_local_experts"});
  fields.optional("moe_intermediate_size", &c.moe_intermediate_size, 3072, width_bound())
      .optional("n_routed_experts", &c.n_routed_experts, 256, experts_bound())
      .optional("num_experts_per_tok", &c.num_experts_per_tok, 6, experts_bound())
      .optional("n_shared_experts", &c.n_shared_experts, 2, experts_bound())
      .optional("route_scale", &c.route_scale, 8.0, finite())
      .check([&] { return c.num_experts_per_tok <= c.n_routed_experts; },
             "num_experts_per_tok must be at most n_routed_experts");
}

void read_text(ConfigFields& fields, InklingConfig& c) {
  fields.alias("sliding_window_size", {"sliding_window"})
      .alias("conv_kernel_size", {"sconv_kernel_size"})
      .alias("max_position_embeddings", {"model_max_length"})
      .alias("logits_mup_width_multiplier", {"embedding_multiplier"});
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound());
  read_heads(fields, "", c.full, {64, 8, 128});
  read_heads(fields, "swa_", c.sliding, {64, 16, 128});
  fields.optional("intermediate_size", &c.intermediate_size, 24576, width_bound())
      .optional("dense_intermediate_size", &c.intermediate_size, c.intermediate_size, width_bound())
      .optional("sliding_window_size", &c.sliding_window_size, 512, width_bound())
      .optional("d_rel", &c.d_rel, 16, head_dim_bound())
      .optional("rel_extent", &c.rel_extent, 1024, width_bound())
      .optional("conv_kernel_size", &c.conv_kernel_size, 4, between(2, 16))
      .optional("log_scaling_n_floor", &c.log_scaling_n_floor, positive_finite())
      .optional("log_scaling_alpha", &c.log_scaling_alpha, 0.1, finite())
      .optional("max_position_embeddings", &c.max_position_embeddings, 131072, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-6, positive_finite())
      .optional("logits_mup_width_multiplier", &c.logits_mup_width_multiplier, 24.0, positive_finite());
  c.hidden_act = read_activation(fields, "hidden_act", "silu");
  read_moe(fields, c);
  read_layer_types(fields, c);
  fields.optional("unpadded_vocab_size", &c.unpadded_vocab_size, c.vocab_size, vocab_bound());
}

InklingConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  InklingConfig c;
  c.is_container = fields.has("text_config");
  if (c.is_container) {
    ConfigFields nested = fields.nested("text_config");
    read_text(nested, c);
  } else {
    read_text(fields, c);
  }
  fields.finish();
  return c;
}

RelativeAttentionConfig attention_config(const InklingConfig& c, bool sliding) {
  const Heads& heads = sliding ? c.sliding : c.full;
  RelativeAttentionConfig attention;
  attention.hidden_size = c.hidden_size;
  attention.num_heads = heads.heads;
  attention.num_kv_heads = heads.kv_heads;
  attention.head_dim = heads.head_dim;
  attention.relative_dim = c.d_rel;
  attention.extent = sliding ? c.sliding_window_size : c.rel_extent;
  attention.sliding_window = sliding ? c.sliding_window_size : 0;
  attention.norm_eps = c.rms_norm_eps;
  if (!sliding) attention.log_floor = c.log_scaling_n_floor;
  attention.log_alpha = c.log_scaling_alpha;
  return attention;
}

MlpConfig mlp_config(const InklingConfig& c, WeightLoader loader) {
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = c.intermediate_size;
  mlp.activation = c.hidden_act;
  mlp.down_multiplier = loader.take_float("global_scale", Shape{1})[0];
  return mlp;
}

MoeConfig moe_config(const InklingConfig& c, WeightLoader loader) {
  MoeConfig moe;
  moe.hidden_size = c.hidden_size;
  moe.intermediate_size = c.moe_intermediate_size;
  moe.num_experts = c.n_routed_experts;
  moe.top_k = c.num_experts_per_tok;
  moe.w1 = "gate_proj";
  moe.w3 = "up_proj";
  moe.w2 = "down_proj";
  moe.stacked_w1_w3 = "experts.gate_up_proj";
  moe.stacked_w2 = "experts.down_proj";
  moe.activation = c.hidden_act;
  moe.score = RouterScore::kSigmoid;
  moe.selection_bias = "gate.e_score_correction_bias";
  moe.scale = c.route_scale * loader.take_float("gate.global_scale", Shape{1})[0];
  moe.num_always = c.n_shared_experts;
  return moe;
}

std::vector<ResidualConvConfig> convs_of(const InklingConfig& c, bool sliding) {
  const Heads& heads = sliding ? c.sliding : c.full;
  const int64_t kv_width = heads.kv_heads * heads.head_dim;
  return {{"self_attn.k_sconv.conv1d.weight", kv_width},
          {"self_attn.v_sconv.conv1d.weight", kv_width},
          {"attn_sconv.conv1d.weight", c.hidden_size},
          {"mlp_sconv.conv1d.weight", c.hidden_size}};
}

class InklingBlock final : public DecoderBlock {
 public:
  InklingBlock(const InklingConfig& c, const BlockContext& context)
      : hidden_size_(c.hidden_size),
        sliding_(c.is_sliding(context.index)),
        mlp_name_(layer_name_of(context.layer.scoped("mlp"))),
        convs_(convs_of(c, sliding_), c.conv_kernel_size, "sconv", context.layer),
        input_norm_(context.layer, "input_layernorm", c.hidden_size, c.rms_norm_eps),
        attention_(attention_config(c, sliding_), context.layer.scoped("self_attn"), convs_, kKeyConv, kValueConv),
        mlp_norm_(context.layer, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps) {
    const WeightLoader mlp = context.layer.scoped("mlp");
    if (c.is_sparse(context.index))
      experts_.emplace(moe_config(c, mlp), mlp);
    else
      mlp_.emplace(mlp_config(c, mlp), mlp);
  }

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override {
    WorkspaceScope scope(*batch.workspace);
    const int64_t tokens = batch.num_tokens(), size = tokens * hidden_size_;
    float* normed = batch.workspace->take<float>(size);
    float* update = batch.workspace->take<float>(size);
    input_norm_.forward(batch, stream.x, tokens, normed);
    attention_.forward(batch, normed, update);
    add_convolved(batch, kAttentionConv, update, normed, stream.x);
    mlp_norm_.forward(batch, stream.x, tokens, normed);
    if (experts_)
      experts_->forward(batch, normed, update);
    else
      mlp_->forward(batch, normed, update);
    add_convolved(batch, kMlpConv, update, normed, stream.x);
  }

  void describe(std::vector<LayerInfo>& layers) const override {
    layers.push_back({convs_.layer_name(), "short_conv", &convs_});
    layers.push_back({attention_.layer_name(), sliding_ ? "sliding_attention" : "full_attention", &attention_});
    layers.push_back({mlp_name_, experts_ ? "moe" : "mlp", nullptr});
  }

 private:
  void add_convolved(const ForwardBatch& batch, Conv conv, const float* update, float* scratch, float* x) const {
    convs_.forward(batch, conv, update, scratch);
    for (int64_t i = 0; i < batch.num_tokens() * hidden_size_; ++i) x[i] += scratch[i];
  }

  int64_t hidden_size_;
  bool sliding_;
  std::string mlp_name_;
  ResidualConvs convs_;
  RmsNorm input_norm_;
  RelativeAttention attention_;
  RmsNorm mlp_norm_;
  std::optional<MoeBlock> experts_;  // one of the two
  std::optional<Mlp> mlp_;
};

std::unique_ptr<Model> load_named(ModelLoadContext& context, bool first_release) {
  const InklingConfig c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder;
  decoder.architecture = "inkling_text";
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.hidden_size;
  decoder.num_layers = c.num_hidden_layers;
  decoder.max_position_embeddings = c.max_position_embeddings;
  decoder.norm_eps = c.rms_norm_eps;
  decoder.logits_size = std::min(c.unpadded_vocab_size, c.vocab_size);
  decoder.logits_scale = 1.0 / c.logits_mup_width_multiplier;
  decoder.ignored = {{"model.mtp", "heads that predict several tokens are not run"}};
  if (c.is_container || first_release) {
    decoder.base = "model.language_model";
    decoder.ignored.push_back({"model.vision_tower", "the vision tower is not run"});
    decoder.ignored.push_back({"model.audio_tower", "the audio tower is not run"});
  }
  // Since transformers 5.24 the norm is stored as a part of the embedding.
  const std::string inside = "embed_tokens.embed_norm";
  decoder.embed_norm = context.weights.contains(decoder.base + "." + inside + ".weight") ? inside : "embed_norm";
  return std::make_unique<Decoder>(context, decoder,
                                   [&](const BlockContext& block) { return std::make_unique<InklingBlock>(c, block); });
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  if (!InklingFirstRelease::is_it(context.weights)) return load_named(context, false);
  const InklingFirstRelease weights(context.weights);
  ModelLoadContext renamed{context.config_json,   context.config_path, weights,
                           context.config,        context.thread_pool, context.progress,
                           context.describe_only, context.device};
  return load_named(renamed, true);
}

const RegisterModel kInkling({"inkling_text", {"InklingForCausalLM", "InklingForConditionalGeneration"}, load});

}  // namespace
}  // namespace coluber
