// SPDX-License-Identifier: Apache-2.0
#include "models/fla_decoder.h"

#include <algorithm>
#include <cmath>

#include "layers/mlp.h"
#include "layers/recurrent_layer.h"
#include "models/sizes.h"

namespace coluber {
namespace {

// Given: as it is. Else 2/3 of the ratio, up to the next multiple of 256.
int64_t read_intermediate_size(ConfigFields& fields, int64_t hidden_size, int64_t default_ratio) {
  int64_t ratio = 0;
  std::optional<int64_t> given;
  fields.optional("hidden_ratio", &ratio, default_ratio, between(1, 1 << 10))
      .optional("intermediate_size", &given, width_bound());
  if (given) return *given;
  const int64_t size = (hidden_size * ratio * 2 / 3 + 255) / 256 * 256;
  fields.check(size <= kMostWidth, fmt::format("hidden_size * hidden_ratio * 2/3 must be at most {}", kMostWidth));
  return size;
}

void read_attention(ConfigFields& fields, FlaConfig& c) {
  if (!fields.has("attn")) return;
  ConfigFields attn = fields.nested("attn");
  AttentionConfig attention;
  RopeConfig rope;
  attention.hidden_size = c.hidden_size;
  attn.list_or_one("layers", &c.attention_layers, between(0, static_cast<double>(c.num_hidden_layers - 1)))
      .required("num_heads", &attention.num_heads, heads_bound());
  attn.optional("num_kv_heads", &attention.num_kv_heads, attention.num_heads, heads_bound())
      .optional("qkv_bias", &attention.qkv_bias, false)
      .optional("window_size", &attention.sliding_window, 0, positive())
      .optional("rope_theta", &rope.theta, 10000.0, positive_finite())
      .check([&] { return c.hidden_size % attention.num_heads == 0; }, "attn.num_heads must divide hidden_size")
      .check([&] { return attention.num_heads % attention.num_kv_heads == 0; },
             "attn.num_kv_heads must divide attn.num_heads")
      .check([&] { return c.hidden_size / attention.num_heads % 2 == 0; },
             "hidden_size / attn.num_heads must be even: the whole head is rotated");
  if (!fields.ok()) return;
  attention.head_dim = c.hidden_size / attention.num_heads;
  rope.rotary_dim = attention.head_dim;
  attention.rope = rope;
  c.attention = attention;
}

std::unique_ptr<DecoderBlock> make_block(const FlaConfig& c, const BlockContext& context,
                                         const AddFlaMixer& add_mixer) {
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(context.layer, "attn_norm", c.hidden_size, c.norm_eps));
  const WeightLoader attn = context.layer.scoped("attn"), mlp_loader = context.layer.scoped("mlp");
  if (c.is_attention(context.index))
    block->add("full_attention", std::make_unique<Attention>(*c.attention, attn));
  else
    add_mixer(*block, context, attn);
  block->begin_half(RmsNorm(context.layer, "mlp_norm", c.hidden_size, c.norm_eps));
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = c.intermediate_size;
  block->add("mlp", std::make_unique<Mlp>(mlp, mlp_loader), {}, layer_name_of(mlp_loader));
  return block;
}

}  // namespace

bool FlaConfig::is_attention(int64_t layer) const {
  return std::find(attention_layers.begin(), attention_layers.end(), layer) != attention_layers.end();
}

FlaConfig read_fla_fields(ConfigFields& fields, int64_t default_ratio, bool default_short_conv) {
  FlaConfig c;
  std::string hidden_act;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 2048, positive())
      .optional("norm_eps", &c.norm_eps, 1e-6, positive_finite())
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false)
      .optional("elementwise_affine", &c.elementwise_affine, true)
      .optional("use_short_conv", &c.use_short_conv, default_short_conv)
      .optional("conv_size", &c.conv_size, 4, between(2, 16))
      .optional("hidden_act", &hidden_act, "swish", one_of({"swish", "silu"}))
      .check(!fields.has("attnres_block_size"),
             "attnres_block_size must be null: attention over the residuals of earlier layers is not supported");
  c.intermediate_size = read_intermediate_size(fields, c.hidden_size, default_ratio);
  read_attention(fields, c);
  return c;
}

int64_t read_expanded_width(ConfigFields& fields, int64_t hidden_size, std::string_view key, double fallback) {
  double factor = 0;
  fields.optional(key, &factor, fallback, between(1e-6, 1024));
  const double width = std::round(static_cast<double>(hidden_size) * factor);
  const bool whole = std::abs(width - static_cast<double>(hidden_size) * factor) <= 1e-6 * width;
  fields.check([&] { return whole && width >= 1 && width <= static_cast<double>(kMostWidth); },
               fmt::format("hidden_size * {} must be a whole number from 1 to {}", key, kMostWidth));
  return fields.ok() ? static_cast<int64_t>(width) : 1;
}

std::unique_ptr<Model> make_fla_decoder(ModelLoadContext& context, const std::string& architecture,
                                        const FlaConfig& config, int64_t positions, const AddFlaMixer& add_mixer) {
  DecoderConfig decoder = decoder_config(architecture, config, config.norm_eps);
  if (!config.attention) decoder.max_position_embeddings = positions;
  decoder.embed_tokens = "embeddings";
  return std::make_unique<Decoder>(context, decoder,
                                   [&](const BlockContext& block) { return make_block(config, block, add_mixer); });
}

}  // namespace coluber
