// SPDX-License-Identifier: Apache-2.0
//
// ZAYA (Zyphra, 2026): layers of compressed convolutional attention, over all tokens or over a window, each followed by
// experts of which a token meets one or none. Residual and update are scaled apart, and a router hears what the router
// of the layer before made of the token.
//
//   x = (attention(input_layernorm(x)) + b1) * s1 + (x + b2) * s2, then the same with the experts
//   r = down_proj(h) + scale * r of the layer before;  p = softmax(router_mlp(r));  the expert is the largest of
//   p + balancing_biases, the last class stands for none; its output counts p times
#include <algorithm>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/cca.h"
#include "layers/linear.h"
#include "layers/moe.h"
#include "layers/norm.h"
#include "layers/recurrent_layer.h"
#include "models/activation_field.h"
#include "models/decoder.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

struct ZayaConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0, cca_time0 = 0, cca_time1 = 0;
  int64_t moe_intermediate_size = 0, num_experts = 0, router_hidden_size = 0, sliding_window = 0;
  double rms_norm_eps = 0;
  bool attention_bias = false, lm_head_bias = false, tie_word_embeddings = true;
  Activation hidden_act = Activation::kSilu;
  std::vector<std::string> layer_types;
  RopeConfig rope, sliding_rope;

  bool is_sliding(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "hybrid_sliding"; }
};

// Rotations of the two kinds of layers lie under their names; a file without any has the published defaults.
RopeConfig read_rope(ConfigFields& fields, const ZayaConfig& c, std::string_view kind, double default_theta) {
  ConfigFields kinds = fields.nested("rope_parameters"), of_kind = kinds.nested(kind);
  RopeConfig rope;
  double part = 0.5;
  std::string type;
  of_kind.alias("rope_type", {"type"});
  of_kind.optional("rope_type", &type, "default", one_of({"default"}))
      .optional("rope_theta", &rope.theta, default_theta, positive_finite())
      .optional("partial_rotary_factor", &part, kinds.has(kind) ? 1.0 : 0.5, between(1e-6, 1.0));
  rope.rotary_dim = static_cast<int64_t>(static_cast<double>(c.head_dim) * part);
  fields.check([&] { return rope.rotary_dim >= 2 && rope.rotary_dim % 2 == 0; },
               "the rotated part of a head must be even and at least 2");
  return rope;
}

void read_layer_types(ConfigFields& fields, ZayaConfig& c) {
  fields.optional("layer_types", &c.layer_types, {}, one_of({"hybrid", "hybrid_sliding"}));
  if (!fields.has("layer_types") && fields.ok())
    c.layer_types.assign(static_cast<size_t>(c.num_hidden_layers), "hybrid");
  const bool slides = std::count(c.layer_types.begin(), c.layer_types.end(), "hybrid_sliding") > 0;
  fields.optional("sliding_window", &c.sliding_window, 0, positive())
      .check([&] { return static_cast<int64_t>(c.layer_types.size()) == c.num_hidden_layers; },
             "layer_types must name num_hidden_layers layers")
      .check([&] { return !slides || c.sliding_window > 0; },
             "sliding_window must be set where layer_types has \"hybrid_sliding\"");
}

ZayaConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  ZayaConfig c;
  int64_t experts_a_token = 1;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("num_attention_heads", &c.num_attention_heads, heads_bound())
      .optional("num_key_value_heads", &c.num_key_value_heads, 2, heads_bound())
      .optional("head_dim", &c.head_dim, 128, head_dim_bound())
      .optional("cca_time0", &c.cca_time0, 2, between(2, 16))
      .optional("cca_time1", &c.cca_time1, 2, between(1, 16))
      .required("moe_intermediate_size", &c.moe_intermediate_size, width_bound())
      .optional("num_experts", &c.num_experts, 16, experts_bound())
      .optional("num_experts_per_tok", &experts_a_token, 1, one_of_numbers({1}))
      .optional("router_hidden_size", &c.router_hidden_size, 256, hidden_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 131072, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-5, positive_finite())
      .optional("attention_bias", &c.attention_bias, false)
      .optional("lm_head_bias", &c.lm_head_bias, false)
      .optional("tie_word_embeddings", &c.tie_word_embeddings, true);
  c.hidden_act = read_activation(fields, "hidden_act", "silu");
  read_layer_types(fields, c);
  c.rope = read_rope(fields, c, "hybrid", 5000000.0);
  c.sliding_rope = read_rope(fields, c, "hybrid_sliding", 10000.0);
  fields
      .check([&] { return c.num_attention_heads % c.num_key_value_heads == 0; },
             "num_key_value_heads must divide num_attention_heads")
      .check([&] { return c.num_key_value_heads * c.head_dim % 2 == 0; },
             "num_key_value_heads * head_dim must be even: half of a value comes from the token before")
      .check([&] { return 2 * c.num_attention_heads * c.head_dim <= kMostWidth; },
             fmt::format("2 * num_attention_heads * head_dim must be at most {}", kMostWidth))
      .finish();
  return c;
}

CcaConfig attention_config(const ZayaConfig& c, bool sliding) {
  CcaConfig attention;
  attention.hidden_size = c.hidden_size;
  attention.num_heads = c.num_attention_heads;
  attention.num_kv_heads = c.num_key_value_heads;
  attention.head_dim = c.head_dim;
  attention.channel_kernel = c.cca_time0;
  attention.head_kernel = c.cca_time1;
  attention.bias = c.attention_bias;
  attention.rope = sliding ? c.sliding_rope : c.rope;
  attention.sliding_window = sliding ? c.sliding_window : 0;
  return attention;
}

MoeConfig experts_config(const ZayaConfig& c) {
  MoeConfig moe;
  moe.hidden_size = c.hidden_size;
  moe.intermediate_size = c.moe_intermediate_size;
  moe.num_experts = c.num_experts;
  moe.top_k = 1;
  moe.w1 = "gate_proj";
  moe.w3 = "up_proj";
  moe.w2 = "down_proj";
  moe.stacked_w1_w3 = "experts.gate_up_proj";
  moe.stacked_w2 = "experts.down_proj";
  moe.activation = c.hidden_act;
  return moe;
}

class ZayaRouter {
 public:
  ZayaRouter(const ZayaConfig& c, WeightLoader loader, bool is_first)
      : width_(c.router_hidden_size),
        classes_(c.num_experts + 1),
        down_(loader, "down_proj", c.hidden_size, width_, true),
        norm_(loader, "router_mlp.norm", width_, c.rms_norm_eps),
        fc1_(loader, "router_mlp.fc1", width_, width_, true),
        fc2_(loader, "router_mlp.fc2", width_, width_, true),
        out_(loader, "router_mlp.out_proj", width_, classes_, false),
        balancing_biases_(loader.take_float("balancing_biases", Shape{classes_})) {
    if (!is_first) carry_scale_ = loader.take_float("router_states_scale", Shape{width_});
  }

  // h [T, D] to one expert's id (the number of experts: none) and weight a token; `carry` [T, router width] is what the
  // layer before left and what this one leaves.
  void forward(const ForwardBatch& batch, const float* h, float* carry, int32_t* ids, float* weights) const {
    WorkspaceScope scope(*batch.workspace);
    const int64_t tokens = batch.num_tokens(), size = tokens * width_;
    float* a = batch.workspace->take<float>(size);
    float* b = batch.workspace->take<float>(size);
    float* logits = batch.workspace->take<float>(tokens * classes_);
    down_.forward(batch, h, tokens, a);
    for (int64_t t = 0; t < tokens && !carry_scale_.empty(); ++t) {
      for (int64_t d = 0; d < width_; ++d)
        a[t * width_ + d] += carry[t * width_ + d] * carry_scale_[static_cast<size_t>(d)];
    }
    std::copy_n(a, size, carry);
    norm_.forward(batch, a, tokens, a);
    fc1_.forward(batch, a, tokens, b);
    gelu(batch, b);
    fc2_.forward(batch, b, tokens, a);
    gelu(batch, a);
    out_.forward(batch, a, tokens, logits);
    RouterArgs args{logits, tokens, classes_, 1, /*renormalize=*/false, ids, weights};
    args.selection_bias = balancing_biases_.data();
    route_top_k()(args, batch);
  }

 private:
  void gelu(const ForwardBatch& batch, float* x) const {
    ActivateArgs args;
    args.activation = Activation::kGelu;
    args.gate = args.out = x;
    args.gate_stride = args.out_stride = args.cols = width_;
    args.rows = batch.num_tokens();
    activate()(args, batch);
  }

  int64_t width_, classes_;
  Linear down_;
  RmsNorm norm_;
  Linear fc1_, fc2_, out_;
  std::vector<float> balancing_biases_, carry_scale_;
};

// x = (update + update_bias) * update_scale + (x + residual_bias) * residual_scale
class ScaledResidual {
 public:
  ScaledResidual(WeightLoader loader, int64_t width)
      : update_bias_(loader.take_float("hidden_states_bias", Shape{width})),
        update_scale_(loader.take_float("hidden_states_scale", Shape{width})),
        residual_bias_(loader.take_float("residual_bias", Shape{width})),
        residual_scale_(loader.take_float("residual_scale", Shape{width})) {}

  void apply(int64_t tokens, const float* update, float* x) const {
    const size_t width = update_bias_.size();
    for (int64_t t = 0; t < tokens; ++t, update += width, x += width) {
      for (size_t d = 0; d < width; ++d)
        x[d] = (update[d] + update_bias_[d]) * update_scale_[d] + (x[d] + residual_bias_[d]) * residual_scale_[d];
    }
  }

 private:
  std::vector<float> update_bias_, update_scale_, residual_bias_, residual_scale_;
};

class ZayaBlock final : public DecoderBlock {
 public:
  ZayaBlock(const ZayaConfig& c, const BlockContext& context)
      : hidden_size_(c.hidden_size),
        sliding_(c.is_sliding(context.index)),
        moe_name_(layer_name_of(context.layer.scoped("mlp"))),
        input_norm_(context.layer, "input_layernorm", c.hidden_size, c.rms_norm_eps),
        attention_(attention_config(c, sliding_), context.layer.scoped("self_attn")),
        attention_residual_(context.layer.scoped("post_attention_residual_scale"), c.hidden_size),
        moe_norm_(context.layer, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps),
        router_(c, context.layer.scoped("mlp.gate"), context.index == 0),
        experts_(experts_config(c), context.layer.scoped("mlp")),
        moe_residual_(context.layer.scoped("post_mlp_residual_scale"), c.hidden_size) {}

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override {
    WorkspaceScope scope(*batch.workspace);
    const int64_t tokens = batch.num_tokens();
    float* normed = batch.workspace->take<float>(tokens * hidden_size_);
    float* update = batch.workspace->take<float>(tokens * hidden_size_);
    int32_t* ids = batch.workspace->take<int32_t>(tokens);
    float* weights = batch.workspace->take<float>(tokens);
    input_norm_.forward(batch, stream.x, tokens, normed);
    attention_.forward(batch, normed, update);
    attention_residual_.apply(tokens, update, stream.x);
    moe_norm_.forward(batch, stream.x, tokens, normed);
    router_.forward(batch, normed, stream.carry, ids, weights);
    experts_.forward(batch, normed, ids, weights, 1, update);
    moe_residual_.apply(tokens, update, stream.x);
  }

  void describe(std::vector<LayerInfo>& layers) const override {
    layers.push_back({attention_.projection().layer_name(), "cca", &attention_.projection()});
    layers.push_back({attention_.layer_name(), sliding_ ? "sliding_attention" : "full_attention", &attention_});
    layers.push_back({moe_name_, "moe", nullptr});
  }

 private:
  int64_t hidden_size_;
  bool sliding_;
  std::string moe_name_;
  RmsNorm input_norm_;
  CcaAttention attention_;
  ScaledResidual attention_residual_;
  RmsNorm moe_norm_;
  ZayaRouter router_;
  Experts experts_;
  ScaledResidual moe_residual_;
};

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const ZayaConfig c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder = decoder_config("zaya", c, c.rms_norm_eps);
  decoder.lm_head_bias = c.lm_head_bias;
  decoder.input_bias = "input_hidden_states_bias";
  decoder.input_scale = "input_hidden_states_scale";
  decoder.carry_width = c.router_hidden_size;
  return std::make_unique<Decoder>(context, decoder,
                                   [&](const BlockContext& block) { return std::make_unique<ZayaBlock>(c, block); });
}

const RegisterModel kZaya({"zaya", {"ZayaForCausalLM"}, load});

}  // namespace
}  // namespace coluber
