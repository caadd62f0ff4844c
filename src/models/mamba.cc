// SPDX-License-Identifier: Apache-2.0
//
// Mamba (Gu and Dao, 2023) and Falcon-Mamba, which adds RMS norms without weights on dt, B and C. Per layer: x = x +
// mixer(norm(x)).
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/mamba_mixer.h"
#include "layers/norm.h"
#include "models/decoder.h"
#include "models/residual_block.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct MambaConfig {
  std::string model_type;
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0;
  int64_t state_size = 0, conv_kernel = 0, expand = 0, intermediate_size = 0, time_step_rank = 0;
  double layer_norm_epsilon = 0, mixer_rms_eps = 0;
  bool use_bias = false, use_conv_bias = true, tie_word_embeddings = true;
  std::string hidden_act;

  bool is_falcon() const { return model_type == "falcon_mamba"; }
};

MambaConfig read_config(const std::string& text, const std::string& path, const std::string& model_type) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  MambaConfig c;
  fields.alias("hidden_size", {"d_model"})
      .alias("num_hidden_layers", {"n_layer"})
      .alias("intermediate_size", {"d_inner"});
  c.model_type = model_type;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("state_size", &c.state_size, 16, width_bound())
      .optional("conv_kernel", &c.conv_kernel, 4, between(2, 8))
      .optional("expand", &c.expand, 2, between(1, 1 << 10));
  fields.optional("intermediate_size", &c.intermediate_size, c.expand * c.hidden_size, width_bound());
  // "auto" is what the configuration class itself writes before it is saved.
  const Json* rank = fields.find("time_step_rank");
  c.time_step_rank = (c.hidden_size + 15) / 16;
  if (rank != nullptr && !(rank->is_string() && rank->as_string() == "auto"))
    fields.required("time_step_rank", &c.time_step_rank, width_bound());
  fields.optional("layer_norm_epsilon", &c.layer_norm_epsilon, 1e-5, positive_finite())
      .optional("mixer_rms_eps", &c.mixer_rms_eps, 1e-6, positive_finite())
      .optional("use_bias", &c.use_bias, false)
      .optional("use_conv_bias", &c.use_conv_bias, true)
      .optional("tie_word_embeddings", &c.tie_word_embeddings, true)
      .optional("hidden_act", &c.hidden_act, "silu", one_of({"silu", "swish"}))
      .check([&] { return c.intermediate_size <= kMostWidth; },
             fmt::format("intermediate_size (expand * hidden_size) must be at most {}", kMostWidth))
      .finish();
  return c;
}

MambaMixerConfig mixer_config(const MambaConfig& c) {
  MambaMixerConfig mixer;
  mixer.hidden_size = c.hidden_size;
  mixer.intermediate_size = c.intermediate_size;
  mixer.state_size = c.state_size;
  mixer.conv_kernel = c.conv_kernel;
  mixer.time_step_rank = c.time_step_rank;
  mixer.use_bias = c.use_bias;
  mixer.use_conv_bias = c.use_conv_bias;
  if (c.is_falcon()) mixer.mixer_rms_eps = c.mixer_rms_eps;
  return mixer;
}

// Both spellings are published.
std::string embedding_name(const WeightSource& weights) {
  return weights.contains("backbone.embedding.weight") ? "embedding" : "embeddings";
}

std::unique_ptr<DecoderBlock> make_block(const MambaConfig& c, const BlockContext& context) {
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(context.layer, "norm", c.hidden_size, c.layer_norm_epsilon));
  block->add("mamba1", std::make_unique<MambaMixer>(mixer_config(c), context.layer.scoped("mixer")));
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context, const std::string& model_type) {
  const MambaConfig c = read_config(context.config_json, context.config_path, model_type);
  DecoderConfig decoder;
  decoder.architecture = model_type;
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.hidden_size;
  decoder.num_layers = c.num_hidden_layers;
  decoder.norm_eps = c.layer_norm_epsilon;
  decoder.tied = c.tie_word_embeddings;
  decoder.hidden_has_embedding = false;
  decoder.base = "backbone";
  decoder.embed_tokens = embedding_name(context.weights);
  decoder.norm = "norm_f";
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

// The family that was found says which it is: a config may name only its architecture.
ModelFamily family(const std::string& model_type, const std::string& architecture) {
  return {model_type,
          {architecture},
          [model_type](ModelLoadContext& context) { return load(context, model_type); },
          {},
          /*runs_on_cuda=*/true};
}

const RegisterModel kMamba(family("mamba", "MambaForCausalLM"));
const RegisterModel kFalconMamba(family("falcon_mamba", "FalconMambaForCausalLM"));

}  // namespace
}  // namespace coluber
