// SPDX-License-Identifier: Apache-2.0
//
// OLMo Hybrid (Ai2, 2026): Gated DeltaNet layers whose beta reaches 2, normed before mixer and MLP, and every fourth
// attention with queries and keys normed over all heads, normed behind attention and MLP:
//
//   linear_attention  x = x + mixer(norm(x)); x = x + mlp(norm(x))
//   full_attention    x = x + norm(attention(x)); x = x + norm(mlp(x))
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "kernels/elementwise/scale.h"
#include "layers/attention.h"
#include "layers/gated_delta_net.h"
#include "layers/mlp.h"
#include "layers/recurrent_layer.h"
#include "models/decoder.h"
#include "models/delta_fields.h"
#include "models/hybrid_fields.h"
#include "models/residual_block.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

// FLA's default: the file says nothing of it.
constexpr double kMixerNormEps = 1e-5;

struct OlmoConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0, intermediate_size = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  std::vector<std::string> layer_types;
  AttentionConfig attention;
  GatedDeltaNetConfig delta;

  bool is_attention(int64_t layer) const { return layer_types[static_cast<size_t>(layer)] == "full_attention"; }
};

void read_delta(ConfigFields& fields, OlmoConfig& c) {
  GatedDeltaNetConfig defaults;
  defaults.num_k_heads = defaults.num_v_heads = c.attention.num_heads;
  defaults.conv_kernel = 4;
  fields.optional("linear_num_key_heads", &defaults.num_k_heads, c.attention.num_heads, heads_bound())
      .optional("linear_key_head_dim", &defaults.head_k_dim, 3 * c.hidden_size / (4 * defaults.num_k_heads));
  defaults.head_v_dim = 2 * defaults.head_k_dim;
  c.delta = read_delta_fields(fields, defaults);
  fields.optional("linear_allow_neg_eigval", &c.delta.allow_neg_eigval, true)
      .check([&] { return c.delta.head_k_dim >= 1 && c.delta.head_k_dim <= kMaxDeltaKeyDim; },
             fmt::format("linear_key_head_dim, or 3/4 * hidden_size / linear_num_key_heads where it is absent, must be "
                         "from 1 to {}",
                         kMaxDeltaKeyDim));
  c.delta.hidden_size = c.hidden_size;
  c.delta.norm_eps = kMixerNormEps;
}

OlmoConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  OlmoConfig c;
  std::string hidden_act;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 65536, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-6, positive_finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false)
      .optional("hidden_act", &hidden_act, "silu", one_of({"silu", "swish"}));
  c.attention = read_attention_fields(fields, c.hidden_size, 0);
  c.attention.qk_norm_eps = c.rms_norm_eps;
  c.attention.qk_norm_whole = true;
  if (!rope_theta_is_null(fields)) c.attention.rope = read_rope_parameters(fields, 10000.0, c.attention.head_dim);
  read_delta(fields, c);
  c.layer_types = read_delta_layer_types(fields, c.num_hidden_layers);
  const bool any = std::count(c.layer_types.begin(), c.layer_types.end(), "full_attention") > 0;
  if (!any && !fields.has("layer_types") && !c.layer_types.empty()) c.layer_types.back() = "full_attention";
  fields.finish();
  return c;
}

MlpConfig mlp_config(const OlmoConfig& c) {
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = c.intermediate_size;
  return mlp;
}

// A norm under its name in the modelling code, or under that which files of either kind of layer have for it.
RmsNorm take_norm(const OlmoConfig& c, const WeightLoader& loader, std::string_view name, std::string_view stored) {
  const std::string_view found = loader.has(std::string(stored) + ".weight") ? stored : name;
  return RmsNorm(loader, found, c.hidden_size, c.rms_norm_eps);
}

class PostNormBlock final : public DecoderBlock {
 public:
  PostNormBlock(const OlmoConfig& c, const WeightLoader& loader)
      : hidden_size_(c.hidden_size),
        attention_(c.attention, loader.scoped("self_attn")),
        attention_norm_(take_norm(c, loader, "post_attention_layernorm", "feedforward_layer_norm")),
        mlp_(mlp_config(c), loader.scoped("mlp")),
        mlp_norm_(loader, "post_feedforward_layernorm", c.hidden_size, c.rms_norm_eps),
        mlp_name_(layer_name_of(loader.scoped("mlp"))) {}

  void forward(const ForwardBatch& batch, const DecoderStream& stream) override {
    WorkspaceScope scope(*batch.workspace);
    float* y = batch.workspace->take<float>(batch.num_tokens() * hidden_size_);
    attention_.forward(batch, stream.x, y);
    add_normed(batch, attention_norm_, y, stream.x);
    mlp_.forward(batch, stream.x, y);
    add_normed(batch, mlp_norm_, y, stream.x);
  }
  void describe(std::vector<LayerInfo>& layers) const override {
    layers.push_back({attention_.layer_name(), "full_attention", &attention_});
    layers.push_back({mlp_name_, "mlp", nullptr});
  }

 private:
  void add_normed(const ForwardBatch& batch, const RmsNorm& norm, float* y, float* x) const {
    norm.forward(batch, y, batch.num_tokens(), y);
    ScaleArgs sum{y, hidden_size_, x, hidden_size_, batch.num_tokens(), hidden_size_};
    sum.accumulate = true;
    scale()(sum, batch);
  }

  int64_t hidden_size_;
  Attention attention_;
  RmsNorm attention_norm_;
  Mlp mlp_;
  RmsNorm mlp_norm_;
  std::string mlp_name_;
};

std::unique_ptr<DecoderBlock> make_block(const OlmoConfig& c, const BlockContext& context) {
  const WeightLoader& loader = context.layer;
  if (c.is_attention(context.index)) return std::make_unique<PostNormBlock>(c, loader);
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(take_norm(c, loader, "input_layernorm", "attention_layer_norm"));
  block->add("gdn", std::make_unique<GatedDeltaNet>(c.delta, loader.scoped("linear_attn")));
  block->begin_half(take_norm(c, loader, "post_attention_layernorm", "feedforward_layer_norm"));
  const WeightLoader mlp = loader.scoped("mlp");
  block->add("mlp", std::make_unique<Mlp>(mlp_config(c), mlp), {}, layer_name_of(mlp));
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const OlmoConfig c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder = decoder_config("olmo_hybrid", c, c.rms_norm_eps);
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kOlmoHybrid({"olmo_hybrid", {"OlmoHybridForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
