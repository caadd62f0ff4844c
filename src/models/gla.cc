// SPDX-License-Identifier: Apache-2.0
//
// Gated linear attention (GLA; Yang et al., 2023) and retention (RetNet; Sun et al., 2023) as flash-linear-attention
// publishes them: they differ in where the decay comes from, and only retention knows positions. Retention ignores
// use_short_conv, as the published modelling code does.
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/gated_linear_attention.h"
#include "models/activation_field.h"
#include "models/fla_decoder.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct GlaConfig {
  FlaConfig fla;
  GatedLinearAttentionConfig mixer;
};

void read_heads(ConfigFields& fields, int64_t hidden_size, double expand_k, double expand_v, int64_t num_heads,
                GatedLinearAttentionConfig& mixer) {
  const int64_t key_dim = read_expanded_width(fields, hidden_size, "expand_k", expand_k);
  const int64_t value_dim = read_expanded_width(fields, hidden_size, "expand_v", expand_v);
  fields.optional("num_heads", &mixer.num_heads, num_heads, heads_bound());
  fields.optional("num_kv_heads", &mixer.num_kv_heads, mixer.num_heads, heads_bound())
      .check([&] { return mixer.num_heads % mixer.num_kv_heads == 0; }, "num_kv_heads must divide num_heads")
      .check([&] { return key_dim % mixer.num_heads == 0 && value_dim % mixer.num_heads == 0; },
             "num_heads must divide hidden_size * expand_k and hidden_size * expand_v")
      .check([&] { return key_dim / mixer.num_heads <= kMaxLinearKeyDim; },
             fmt::format("hidden_size * expand_k / num_heads must be at most {}", kMaxLinearKeyDim));
  if (!fields.ok()) return;
  mixer.head_k_dim = key_dim / mixer.num_heads;
  mixer.head_v_dim = value_dim / mixer.num_heads;
}

// The published code looks retention's map up among transformers' functions, and GLA's among its own, where gelu is the
// one with tanh.
std::optional<Activation> read_feature_map(ConfigFields& fields, bool retention) {
  if (!fields.has("feature_map")) return std::nullopt;
  if (retention) return read_activation(fields, "feature_map", "linear");
  std::string name;
  fields.optional("feature_map", &name, "", one_of({"relu", "sqrelu", "sigmoid", "silu", "swish", "gelu"}));
  if (name == "gelu") return Activation::kGeluTanh;
  return name == "sqrelu" ? Activation::kRelu2 : parse_activation(name);
}

GlaConfig read_config(const std::string& text, const std::string& path, bool retention) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  GlaConfig c;
  c.fla = read_fla_fields(fields, retention ? 2 : 4, false);
  GatedLinearAttentionConfig& mixer = c.mixer;
  mixer.hidden_size = c.fla.hidden_size;
  read_heads(fields, c.fla.hidden_size, retention ? 1.0 : 0.5, retention ? 2.0 : 1.0, retention ? 8 : 4, mixer);
  fields.optional("use_output_gate", &mixer.output_gate, true);
  mixer.feature_map = read_feature_map(fields, retention);
  if (!retention) fields.optional("clamp_min", &mixer.clamp_min, finite());
  mixer.decay = retention ? LinearDecay::kConstant : LinearDecay::kLogSigmoid;
  mixer.conv_size = c.fla.use_short_conv && !retention ? c.fla.conv_size : 0;
  mixer.norm_weight = c.fla.elementwise_affine;
  mixer.norm_eps = c.fla.norm_eps;
  if (retention) {
    fields.check([&] { return mixer.head_k_dim % 2 == 0; },
                 "hidden_size * expand_k / num_heads must be even: the whole head is rotated");
    mixer.rope = RopeConfig{};  // base 10000
  }
  fields.finish();
  return c;
}

std::unique_ptr<Model> load(ModelLoadContext& context, bool retention) {
  const GlaConfig c = read_config(context.config_json, context.config_path, retention);
  const auto add_mixer = [&](ResidualBlock& block, const BlockContext&, const WeightLoader& attn) {
    GatedLinearAttentionConfig mixer = c.mixer;
    // Named by whether norm and gate ran in one kernel.
    const std::string_view norm = attn.first_of({"g_norm_swish_gate.weight", "g_norm.weight"});
    mixer.norm = norm.substr(0, norm.find('.'));
    block.add("linear_attention", std::make_unique<GatedLinearAttention>(mixer, attn));
  };
  return make_fla_decoder(context, retention ? "retnet" : "gla", c.fla, retention ? c.fla.max_position_embeddings : 0,
                          add_mixer);
}

const RegisterModel kGla({"gla",
                          {"GLAForCausalLM"},
                          [](ModelLoadContext& context) { return load(context, false); },
                          {},
                          /*runs_on_cuda=*/true});
const RegisterModel kRetNet({"retnet",
                             {"RetNetForCausalLM"},
                             [](ModelLoadContext& context) { return load(context, true); },
                             {},
                             /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
