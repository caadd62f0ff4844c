// SPDX-License-Identifier: Apache-2.0
//
// Bamba (IBM, Princeton, CMU and UIUC, 2024): Mamba-2 mixers and a few attention layers that rotate half of a head,
// each followed by a gated MLP. x = x + mixer(input_layernorm(x)); x = x + mlp(pre_ff_layernorm(x)).
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/mamba_mixer2.h"
#include "layers/mlp.h"
#include "layers/recurrent_layer.h"
#include "models/decoder.h"
#include "models/hybrid_fields.h"
#include "models/residual_block.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"

namespace coluber {
namespace {

constexpr double kRotatedPart = 0.5;  // of a head, whatever a config leaves out

struct BambaConfig {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0, intermediate_size = 0;
  double rms_norm_eps = 0;
  bool mlp_bias = false, tie_word_embeddings = false;
  std::vector<std::string> layer_kinds;
  AttentionConfig attention;
  Mamba2Fields mamba;

  bool is_attention(int64_t layer) const { return layer_kinds[static_cast<size_t>(layer)] == "full_attention"; }
};

// Published configs list the attention layers; newer ones may name every layer's kind.
void read_layers(ConfigFields& fields, BambaConfig& c) {
  std::vector<int64_t> indices;
  fields.optional("attn_layer_indices", &indices, {}, between(0, static_cast<double>(c.num_hidden_layers - 1)));
  c.layer_kinds =
      read_layer_kinds(fields, {"layer_types", "layers_block_type"}, {"linear_attention", "full_attention"});
  if (c.layer_kinds.empty()) {
    c.layer_kinds.assign(static_cast<size_t>(fields.ok() ? c.num_hidden_layers : 0), "linear_attention");
    for (int64_t i : indices)
      if (fields.ok()) c.layer_kinds[static_cast<size_t>(i)] = "full_attention";
  }
  fields.check([&] { return static_cast<int64_t>(c.layer_kinds.size()) == c.num_hidden_layers; },
               "layer_types must name num_hidden_layers layers");
}

BambaConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  BambaConfig c;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 262144, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-5, positive_finite())
      .optional("mlp_bias", &c.mlp_bias, false)
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false);
  read_layers(fields, c);
  c.attention = read_attention_fields(fields, c.hidden_size, 8);
  fields.alias("rotary_dim", {"attn_rotary_emb"});
  c.attention.rope = read_rope_parameters(fields, 10000.0, c.attention.head_dim, kRotatedPart);
  const bool has_mamba = std::count(c.layer_kinds.begin(), c.layer_kinds.end(), "linear_attention") > 0;
  c.mamba = read_mamba2_fields(fields, c.hidden_size, 0, has_mamba);
  c.mamba.mixer.norm_eps = c.rms_norm_eps;
  std::string hidden_act;
  fields.optional("hidden_act", &hidden_act, "silu", one_of({"silu", "swish"})).finish();
  return c;
}

std::unique_ptr<DecoderBlock> make_block(const BambaConfig& c, const BlockContext& context) {
  const WeightLoader& loader = context.layer;
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(loader, "input_layernorm", c.hidden_size, c.rms_norm_eps));
  if (c.is_attention(context.index)) {
    block->add("full_attention", std::make_unique<Attention>(c.attention, loader.scoped("self_attn")));
  } else {
    block->add("mamba2", std::make_unique<MambaMixer2>(c.mamba.mixer, loader.scoped("mamba")));
  }
  block->begin_half(RmsNorm(loader, "pre_ff_layernorm", c.hidden_size, c.rms_norm_eps));
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = c.intermediate_size;
  mlp.bias = c.mlp_bias;
  const WeightLoader feed_forward = loader.scoped("feed_forward");
  block->add("mlp", std::make_unique<Mlp>(mlp, feed_forward), {}, layer_name_of(feed_forward));
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const BambaConfig c = read_config(context.config_json, context.config_path);
  context.config.mamba_chunk_size = c.mamba.chunk_size;
  DecoderConfig decoder = decoder_config("bamba", c, c.rms_norm_eps);
  decoder.norm = "final_layernorm";
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kBamba({"bamba", {"BambaForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
