// SPDX-License-Identifier: Apache-2.0
//
// RWKV-7 ("Goose", Peng et al., 2025). x = x + att(ln1(x)); x = x + ffn(ln2(x)); the embedding has a layer norm of its
// own, and every layer's values lean on the first layer's. Published with BlinkDL's names (sizes and ranks from the
// tensors; often no config.json) and with those of flash-linear-attention.
#include <algorithm>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/rwkv7_time_mix.h"
#include "layers/rwkv_channel_mix.h"
#include "models/rwkv_block.h"
#include "models/sizes.h"

namespace coluber {
namespace {

// -------- BlinkDL's names

std::unique_ptr<RwkvBlock> make_blinkdl_block(const RwkvSizes& sizes, const BlockContext& block) {
  Rwkv7TimeMixConfig att;
  att.hidden_size = sizes.hidden_size;
  att.num_heads = sizes.num_heads;
  att.is_first = block.index == 0;
  RwkvChannelMixConfig ffn;
  ffn.hidden_size = sizes.hidden_size;
  ffn.intermediate_size = sizes.intermediate_size;
  RwkvBlockConfig config;
  config.hidden_size = sizes.hidden_size;
  config.att_kind = "wkv7";
  return std::make_unique<RwkvBlock>(config, block.layer,
                                     std::make_unique<Rwkv7TimeMix>(att, block.layer.scoped("att")),
                                     std::make_unique<RwkvChannelMix>(ffn, block.layer.scoped("ffn")));
}

std::unique_ptr<Model> load_blinkdl(ModelLoadContext& context) {
  const RwkvNames& names = rwkv_names(context.weights);
  const RwkvSizes sizes = read_rwkv_sizes(context.weights, names, "r_k");
  check_rwkv_config(context, sizes);
  DecoderConfig decoder = rwkv_decoder("rwkv7", names, sizes, 1e-5);
  decoder.embed_norm = "blocks.0.ln0";
  decoder.carry_width = sizes.hidden_size;
  for (const char* unused : {"blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2"}) {
    if (context.weights.contains(unused))
      decoder.ignored.push_back({unused, "the first layer's values lean on no other's"});
  }
  return std::make_unique<Decoder>(context, decoder,
                                   [&](const BlockContext& block) { return make_blinkdl_block(sizes, block); });
}

// -------- flash-linear-attention's names

struct Rwkv7Config {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, num_heads = 0, head_dim = 0, intermediate_size = 0;
  double norm_eps = 1e-5, hidden_ratio = 4;
  bool norm_bias = true, norm_first = true, tie_word_embeddings = false;
  std::string hidden_act;
};

// A list, a number or null; what is no value dim of every layer is a problem.
void check_value_dim(ConfigFields& fields, const Rwkv7Config& c) {
  std::vector<int64_t> value_dim;
  fields.list_or_one("value_dim", &value_dim, width_bound())
      .check(
          [&] {
            return std::all_of(value_dim.begin(), value_dim.end(), [&](int64_t v) { return v == c.hidden_size; });
          },
          fmt::format("value_dim must be hidden_size, {}, in every layer; other widths are not read", c.hidden_size));
}

Rwkv7Config read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  Rwkv7Config c;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("num_heads", &c.num_heads, 0, heads_bound());
  fields.optional("head_dim", &c.head_dim, c.num_heads > 0 ? c.hidden_size / c.num_heads : 64, head_dim_bound())
      .optional("hidden_ratio", &c.hidden_ratio, 4.0, between(1e-3, 1e3))
      .optional("norm_eps", &c.norm_eps, 1e-5, positive_finite())
      .optional("norm_bias", &c.norm_bias, true)
      .optional("norm_first", &c.norm_first, true)
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false)
      .optional("hidden_act", &c.hidden_act, "sqrelu", one_of({"sqrelu", "relu2"}));
  const auto width = static_cast<int64_t>(static_cast<double>(c.hidden_size) * c.hidden_ratio);
  fields.optional("intermediate_size", &c.intermediate_size, (width + 31) / 32 * 32, width_bound())
      .check([&] { return c.head_dim >= 1 && c.hidden_size % c.head_dim == 0; }, "head_dim must divide hidden_size")
      .check([&] { return c.num_heads == 0 || c.num_heads * c.head_dim == c.hidden_size; },
             "num_heads * head_dim must be hidden_size")
      .check([&] { return c.intermediate_size <= kMostWidth; },
             fmt::format("hidden_size * hidden_ratio must be at most {}", kMostWidth))
      .check(!fields.has("attn"), "attn must be null: layers of softmax attention among those of RWKV-7 are not read");
  check_value_dim(fields, c);
  fields.finish();
  return c;
}

std::unique_ptr<RwkvBlock> make_fla_block(const Rwkv7Config& c, const BlockContext& block) {
  Rwkv7TimeMixConfig att;
  att.hidden_size = c.hidden_size;
  att.num_heads = c.hidden_size / c.head_dim;
  att.is_first = block.index == 0;
  att.norm_eps = static_cast<double>(c.head_dim) * c.norm_eps;
  att.key_eps = 1e-6;
  att.names = Rwkv7Names::kFla;
  RwkvChannelMixConfig ffn;
  ffn.hidden_size = c.hidden_size;
  ffn.intermediate_size = c.intermediate_size;
  RwkvBlockConfig config;
  config.hidden_size = c.hidden_size;
  config.norm_eps = c.norm_eps;
  config.norm_bias = c.norm_bias;
  config.att_norm = "attn_norm";
  config.ffn_norm = "ffn_norm";
  config.att_kind = "wkv7";
  return std::make_unique<RwkvBlock>(config, block.layer,
                                     std::make_unique<Rwkv7TimeMix>(att, block.layer.scoped("attn")),
                                     std::make_unique<RwkvChannelMix>(ffn, block.layer.scoped("ffn")));
}

std::unique_ptr<Model> load_fla(ModelLoadContext& context) {
  const Rwkv7Config c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder;
  decoder.architecture = "rwkv7";
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.hidden_size;
  decoder.num_layers = c.num_hidden_layers;
  decoder.norm_eps = c.norm_eps;
  decoder.layer_norm = true;
  decoder.layer_norm_bias = c.norm_bias;
  decoder.embed_tokens = "embeddings";
  if (c.norm_first) decoder.embed_norm = "layers.0.pre_norm";
  decoder.tied = c.tie_word_embeddings;
  decoder.carry_width = c.hidden_size;
  return std::make_unique<Decoder>(context, decoder,
                                   [&](const BlockContext& block) { return make_fla_block(c, block); });
}

bool has_blinkdl_names(const std::string&, const WeightSource& weights) {
  return weights.contains("emb.weight") && weights.contains("blocks.0.att.r_k");
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  if (context.config_json.empty() || has_blinkdl_names(context.config_json, context.weights))
    return load_blinkdl(context);
  return load_fla(context);
}

const RegisterModel kRwkv7({"rwkv7", {"RWKV7ForCausalLM", "RWKV_x070"}, load, has_blinkdl_names});

}  // namespace
}  // namespace coluber
