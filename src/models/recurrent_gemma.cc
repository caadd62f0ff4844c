// SPDX-License-Identifier: Apache-2.0
//
// RecurrentGemma (Google, 2024; the Griffin architecture): layers of RG-LRU with a short convolution, or of attention
// over a window, each followed by a gated MLP. Norms are centred on zero; the embedding is scaled, the logits are
// bounded.
//
//   x = x + temporal_block(temporal_pre_norm(x)); x = x + mlp_block(channel_pre_norm(x))
#include <cmath>

#include "base/dtype.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/recurrent_layer.h"
#include "layers/rg_lru.h"
#include "models/activation_field.h"
#include "models/decoder.h"
#include "models/residual_block.h"
#include "models/rope_parameters.h"
#include "models/sizes.h"

namespace coluber {
namespace {

constexpr double kRotatedPart = 0.5;  // of a head, whatever a config leaves out

struct RecurrentGemmaConfig {
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0, attention_window_size = 0;
  int64_t lru_width = 0, conv1d_width = 0;
  double logits_soft_cap = 0, rms_norm_eps = 0;
  bool attention_bias = false, tie_word_embeddings = true;
  Activation hidden_activation = Activation::kGeluTanh;
  std::vector<std::string> block_types;  // repeated over the layers
  RopeConfig rope;

  bool is_attention(int64_t layer) const {
    return block_types[static_cast<size_t>(layer) % block_types.size()] == "attention";
  }
};

RecurrentGemmaConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  RecurrentGemmaConfig c;
  fields.alias("attention_window_size", {"sliding_window"})
      .alias("block_types", {"_block_types"})
      .alias("hidden_activation", {"hidden_act"});
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("num_attention_heads", &c.num_attention_heads, heads_bound());
  fields.optional("num_key_value_heads", &c.num_key_value_heads, c.num_attention_heads, heads_bound())
      .optional("head_dim", &c.head_dim, std::max<int64_t>(c.hidden_size / c.num_attention_heads, 1), head_dim_bound())
      .optional("lru_width", &c.lru_width, c.hidden_size, width_bound())
      .optional("conv1d_width", &c.conv1d_width, 4, between(2, 16))
      .optional("attention_window_size", &c.attention_window_size, 2048, positive())
      .optional("logits_soft_cap", &c.logits_soft_cap, 30.0, positive_finite())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-6, positive_finite())
      .optional("attention_bias", &c.attention_bias, false)
      .optional("tie_word_embeddings", &c.tie_word_embeddings, true)
      .optional("block_types", &c.block_types, {"recurrent", "recurrent", "attention"},
                one_of({"recurrent", "attention"}));
  c.hidden_activation = read_activation(fields, "hidden_activation", "gelu_pytorch_tanh");
  c.rope = read_rope_parameters(fields, 10000.0, c.head_dim, kRotatedPart);
  fields.check([&] { return !c.block_types.empty(); }, "block_types must name at least one kind of layer")
      .check([&] { return c.intermediate_size >= 2; },
             "intermediate_size must be at least 2: the MLP is half of it wide")
      .check([&] { return c.num_attention_heads % c.num_key_value_heads == 0; },
             "num_key_value_heads must divide num_attention_heads")
      .check([&] { return c.lru_width % c.num_attention_heads == 0; }, "num_attention_heads must divide lru_width")
      .check([&] { return fields.has("head_dim") || c.hidden_size % c.num_attention_heads == 0; },
             "num_attention_heads must divide hidden_size")
      .check([&] { return c.num_attention_heads * c.head_dim <= kMostWidth; },
             fmt::format("num_attention_heads * head_dim must be at most {}", kMostWidth))
      .finish();
  return c;
}

AttentionConfig attention_config(const RecurrentGemmaConfig& c) {
  AttentionConfig attention;
  attention.hidden_size = c.hidden_size;
  attention.num_heads = c.num_attention_heads;
  attention.num_kv_heads = c.num_key_value_heads;
  attention.head_dim = c.head_dim;
  attention.rope = c.rope;
  attention.qkv_bias = c.attention_bias;
  attention.out_bias = true;
  attention.sliding_window = c.attention_window_size;
  return attention;
}

RgLruConfig rg_lru_config(const RecurrentGemmaConfig& c) {
  RgLruConfig unit;
  unit.hidden_size = c.hidden_size;
  unit.lru_width = c.lru_width;
  unit.num_heads = c.num_attention_heads;
  unit.conv_kernel = c.conv1d_width;
  unit.activation = c.hidden_activation;
  return unit;
}

MlpConfig mlp_config(const RecurrentGemmaConfig& c) {
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = c.intermediate_size / 2;
  mlp.bias = true;
  mlp.activation = c.hidden_activation;
  return mlp;
}

std::unique_ptr<DecoderBlock> make_block(const RecurrentGemmaConfig& c, const BlockContext& context) {
  const WeightLoader& loader = context.layer;
  auto norm = [&](const char* name) { return RmsNorm(loader, name, c.hidden_size, c.rms_norm_eps, 1.0f); };
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  const WeightLoader temporal = loader.scoped("temporal_block"), mlp = loader.scoped("mlp_block");
  block->begin_half(norm("temporal_pre_norm"));
  if (c.is_attention(context.index)) {
    block->add("sliding_attention", std::make_unique<Attention>(attention_config(c), temporal));
  } else {
    block->add("rg_lru", std::make_unique<RgLru>(rg_lru_config(c), temporal));
  }
  block->begin_half(norm("channel_pre_norm"));
  block->add("mlp", std::make_unique<Mlp>(mlp_config(c), mlp), {}, layer_name_of(mlp));
  return block;
}

// The factor of the embedding is sqrt(hidden_size) as a bfloat16, in the published code whatever the weights' type.
double embedding_multiplier(int64_t hidden_size) {
  const float exact = std::sqrt(static_cast<float>(hidden_size));
  uint16_t rounded;
  float factor;
  convert_from_float(&exact, 1, DType::kBFloat16, reinterpret_cast<std::byte*>(&rounded));
  convert_to_float(reinterpret_cast<const std::byte*>(&rounded), DType::kBFloat16, 1, &factor);
  return factor;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const RecurrentGemmaConfig c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder;
  decoder.architecture = "recurrent_gemma";
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.hidden_size;
  decoder.num_layers = c.num_hidden_layers;
  decoder.norm_eps = c.rms_norm_eps;
  decoder.norm_weight_offset = 1;
  decoder.tied = c.tie_word_embeddings;
  decoder.embedding_multiplier = embedding_multiplier(c.hidden_size);
  decoder.logits_softcap = c.logits_soft_cap;
  decoder.norm = "final_norm";
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kRecurrentGemma({"recurrent_gemma", {"RecurrentGemmaForCausalLM"}, load});

}  // namespace
}  // namespace coluber
