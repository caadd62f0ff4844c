// SPDX-License-Identifier: Apache-2.0
//
// RWKV-5 ("Eagle" is 5.2) and RWKV-6 ("Finch") (Peng et al., 2024). x = x + att(ln1(x)); x = x + ffn(ln2(x)); the
// embedding has a layer norm of its own. Published as bare .pth files with BlinkDL's names, and with Hugging Face's
// names beside a config.json; the sizes come from the tensors in both.
#include "coluber/registry.h"
#include "layers/rwkv6_time_mix.h"
#include "layers/rwkv_channel_mix.h"
#include "models/rwkv_block.h"

namespace coluber {
namespace {

std::unique_ptr<RwkvBlock> make_block(const RwkvSizes& sizes, bool data_dependent, double norm_eps,
                                      const RwkvNames& names, const BlockContext& block) {
  const WeightLoader time_mix = block.layer.scoped(names.att);
  // RWKV-6 names its mixes alike everywhere; those of RWKV-5 are spelled out at Hugging Face.
  const bool letters = data_dependent || names.base.empty();
  const std::string prefix = data_dependent ? "time_maa_" : "time_mix_";
  const auto mix = [&](const char* letter, const char* word) { return prefix + (letters ? letter : word); };
  Rwkv6TimeMixConfig att;
  att.hidden_size = sizes.hidden_size;
  att.num_heads = sizes.num_heads;
  att.data_dependent = data_dependent;
  att.gate = data_dependent || time_mix.has("gate.weight");  // 5.0 has none
  att.mix_k = mix("k", "key");
  att.mix_v = mix("v", "value");
  att.mix_r = mix("r", "receptance");
  att.mix_g = mix("g", "gate");
  RwkvChannelMixConfig ffn;
  ffn.hidden_size = sizes.hidden_size;
  ffn.intermediate_size = sizes.intermediate_size;
  ffn.mix_weighs_current = !data_dependent;
  ffn.mix_k = att.mix_k;
  ffn.mix_r = att.mix_r;
  RwkvBlockConfig config;
  config.hidden_size = sizes.hidden_size;
  config.norm_eps = norm_eps;
  config.att_kind = "wkv6";
  return std::make_unique<RwkvBlock>(config, block.layer, std::make_unique<Rwkv6TimeMix>(att, time_mix),
                                     std::make_unique<RwkvChannelMix>(ffn, block.layer.scoped(names.ffn)));
}

std::unique_ptr<Model> load(ModelLoadContext& context, bool data_dependent) {
  const RwkvNames& names = rwkv_names(context.weights);
  const RwkvSizes sizes = read_rwkv_sizes(context.weights, names, data_dependent ? "time_faaaa" : "time_decay");
  const double norm_eps = check_rwkv_config(context, sizes).layer_norm_epsilon;
  DecoderConfig decoder = rwkv_decoder(data_dependent ? "rwkv6" : "rwkv5", names, sizes, norm_eps);
  decoder.embed_norm = "blocks.0." + names.pre_norm;
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) {
    return make_block(sizes, data_dependent, norm_eps, names, block);
  });
}

std::unique_ptr<Model> load_rwkv5(ModelLoadContext& context) { return load(context, false); }
std::unique_ptr<Model> load_rwkv6(ModelLoadContext& context) { return load(context, true); }

bool is_rwkv6(const std::string&, const WeightSource& weights) {
  return weights.contains(rwkv_names(weights).att_tensor(0, "time_maa_x"));
}

// RWKV-4 has no norm behind its heads, RWKV-7 no decay that is stored.
bool is_rwkv5(const std::string& config, const WeightSource& weights) {
  const RwkvNames& names = rwkv_names(weights);
  return !is_rwkv6(config, weights) && weights.contains(names.att_tensor(0, "time_decay")) &&
         weights.contains(names.att_tensor(0, "ln_x.weight"));
}

const RegisterModel kRwkv5({"rwkv5", {"Rwkv5ForCausalLM"}, load_rwkv5, is_rwkv5});
const RegisterModel kRwkv6({"rwkv6", {"Rwkv6ForCausalLM"}, load_rwkv6, is_rwkv6});

}  // namespace
}  // namespace coluber
