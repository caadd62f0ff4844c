// SPDX-License-Identifier: Apache-2.0
//
// RWKV-4 (Peng et al., 2023). x = x + att(ln1(x)); x = x + ffn(ln2(x)); the embedding has a layer norm of its own.
// Every `rescale_every` layers the residual stream is halved, and what later layers add with it. The sizes come from
// config.json or, with BlinkDL's names (bare .pth files), from the tensors.
#include <cmath>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/rwkv4_time_mix.h"
#include "layers/rwkv_channel_mix.h"
#include "models/rwkv_block.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct RwkvConfig {
  RwkvSizes sizes;
  double layer_norm_epsilon = 1e-5;
  int64_t rescale_every = 0;
  bool tie_word_embeddings = false;
};

RwkvConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  RwkvConfig c;
  fields.alias("num_hidden_layers", {"n_layer"}).alias("hidden_size", {"n_embd"});
  fields.required("vocab_size", &c.sizes.vocab_size, vocab_bound())
      .required("hidden_size", &c.sizes.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.sizes.num_layers, layers_bound());
  fields.optional("attention_hidden_size", &c.sizes.attention_size, c.sizes.hidden_size, width_bound())
      .optional("intermediate_size", &c.sizes.intermediate_size, 4 * c.sizes.hidden_size, width_bound())
      .optional("layer_norm_epsilon", &c.layer_norm_epsilon, 1e-5, positive_finite())
      .optional("rescale_every", &c.rescale_every, 6)
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false)
      .finish();
  return c;
}

std::unique_ptr<RwkvBlock> make_block(const RwkvConfig& c, const RwkvNames& names, const BlockContext& block) {
  const bool blinkdl = names.base.empty();
  Rwkv4TimeMixConfig att;
  att.hidden_size = c.sizes.hidden_size;
  att.attention_hidden_size = c.sizes.attention_size;
  RwkvChannelMixConfig ffn;
  ffn.hidden_size = c.sizes.hidden_size;
  ffn.intermediate_size = c.sizes.intermediate_size;
  ffn.mix_weighs_current = true;
  ffn.mix_k = att.mix_k = blinkdl ? "time_mix_k" : "time_mix_key";
  ffn.mix_r = att.mix_r = blinkdl ? "time_mix_r" : "time_mix_receptance";
  att.mix_v = blinkdl ? "time_mix_v" : "time_mix_value";
  RwkvBlockConfig config;
  config.hidden_size = c.sizes.hidden_size;
  config.norm_eps = c.layer_norm_epsilon;
  if (block.index == 0) config.pre_norm = names.pre_norm;
  config.att_kind = "wkv4";
  if (c.rescale_every > 0) {
    const int64_t times_halved = block.index / c.rescale_every;
    config.branch_scale = std::exp2(-static_cast<double>(times_halved));
    if ((block.index + 1) % c.rescale_every == 0) config.output_scale = 0.5;
  }
  return std::make_unique<RwkvBlock>(config, block.layer,
                                     std::make_unique<Rwkv4TimeMix>(att, block.layer.scoped(names.att)),
                                     std::make_unique<RwkvChannelMix>(ffn, block.layer.scoped(names.ffn)));
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const RwkvNames& names = rwkv_names(context.weights);
  RwkvConfig c;
  if (names.base.empty()) {
    c.sizes = read_rwkv_sizes(context.weights, names, {});
    c.layer_norm_epsilon = check_rwkv_config(context, c.sizes).layer_norm_epsilon;
  } else {
    c = read_config(context.config_json, context.config_path);
  }
  // transformers gives the last norm no epsilon of the config's.
  DecoderConfig decoder = rwkv_decoder("rwkv", names, c.sizes, 1e-5);
  decoder.tied = c.tie_word_embeddings;
  decoder.hidden_has_embedding = false;
  return std::make_unique<Decoder>(context, decoder,
                                   [&](const BlockContext& block) { return make_block(c, names, block); });
}

bool recognizes(const std::string&, const WeightSource& weights) {
  return weights.contains("emb.weight") && weights.contains("blocks.0.att.time_first") &&
         weights.contains("blocks.0.att.time_decay") && !weights.contains("blocks.0.att.ln_x.weight");
}

const RegisterModel kRwkv({"rwkv", {"RwkvForCausalLM"}, load, recognizes});

}  // namespace
}  // namespace coluber
