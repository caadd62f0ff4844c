// SPDX-License-Identifier: Apache-2.0
//
// Falcon-H1 (TII, 2025): every layer runs Mamba-2 and attention side by side over the same norm, then a gated MLP, with
// fixed multipliers (muP) at every product's input or output.
//   x = x + ssm_out * mamba(norm(x)) + attention_out * attention(attention_in * norm(x));  x = x + mlp(norm(x))
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

struct FalconH1Config {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, max_position_embeddings = 0, intermediate_size = 0;
  double rms_norm_eps = 0, embedding_multiplier = 0, lm_head_multiplier = 0;
  double attention_in_multiplier = 0, attention_out_multiplier = 0, ssm_out_multiplier = 0;
  bool tie_word_embeddings = false, mlp_bias = false;
  std::vector<double> mlp_multipliers;  // of the gate, of the output
  AttentionConfig attention;
  Mamba2Fields mamba;
};

void read_mixer(ConfigFields& fields, const Json& json, FalconH1Config& c) {
  int64_t mamba_d_ssm = 0;
  bool rms_norm = false, norm_before_gate = true;
  std::vector<double> multipliers;
  // null stands for mamba_expand * hidden_size, nothing for the library's default.
  fields.optional("mamba_d_ssm", &mamba_d_ssm, json.find("mamba_d_ssm") == nullptr ? 1024 : 0, width_bound());
  c.mamba = read_mamba2_fields(fields, c.hidden_size, mamba_d_ssm, true);
  MambaMixer2Config& mixer = c.mamba.mixer;
  fields.optional("mamba_rms_norm", &rms_norm, false)
      .optional("mamba_norm_before_gate", &norm_before_gate, true)
      .optional("projectors_bias", &mixer.use_out_bias, false)
      .optional("ssm_in_multiplier", &mixer.in_multiplier, 1.0, finite())
      .optional("ssm_out_multiplier", &c.ssm_out_multiplier, 1.0, finite())
      .optional("ssm_multipliers", &multipliers, {1.0, 1.0, 1.0, 1.0, 1.0}, finite())
      .check([&] { return multipliers.size() == 5; }, "ssm_multipliers must be five numbers, of z, x, B, C and dt");
  if (multipliers.size() == 5)
    mixer.multipliers = {multipliers[0], multipliers[1], multipliers[2], multipliers[3], multipliers[4]};
  mixer.gate = !rms_norm          ? MixerGate::kGateOnly
               : norm_before_gate ? MixerGate::kNormThenGate
                                  : MixerGate::kGateThenNorm;
  mixer.norm_eps = c.rms_norm_eps;
  mixer.norm_groups = mixer.n_groups;
}

FalconH1Config read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  FalconH1Config c;
  std::string hidden_act;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .required("intermediate_size", &c.intermediate_size, width_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 8192, positive())
      .optional("rms_norm_eps", &c.rms_norm_eps, 1e-5, positive_finite())
      .optional("embedding_multiplier", &c.embedding_multiplier, 1.0, finite())
      .optional("lm_head_multiplier", &c.lm_head_multiplier, 1.0, finite())
      .optional("attention_in_multiplier", &c.attention_in_multiplier, 1.0, finite())
      .optional("attention_out_multiplier", &c.attention_out_multiplier, 1.0, finite())
      .optional("mlp_multipliers", &c.mlp_multipliers, {1.0, 1.0}, finite())
      .optional("mlp_bias", &c.mlp_bias, false)
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false)
      .optional("hidden_act", &hidden_act, "silu", one_of({"silu", "swish"}));
  c.attention = read_attention_fields(fields, c.hidden_size, 8);
  c.attention.rope = read_rope_parameters(fields, 10000.0, c.attention.head_dim);
  read_mixer(fields, json, c);
  fields.optional("key_multiplier", &c.attention.key_multiplier, 1.0, finite())
      .check([&] { return c.mlp_multipliers.size() == 2; },
             "mlp_multipliers must be two numbers, of the gate and of the output")
      .finish();
  return c;
}

std::unique_ptr<DecoderBlock> make_block(const FalconH1Config& c, const BlockContext& context) {
  const WeightLoader& loader = context.layer;
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(loader, "input_layernorm", c.hidden_size, c.rms_norm_eps));
  block->add("mamba2", std::make_unique<MambaMixer2>(c.mamba.mixer, loader.scoped("mamba")), {1, c.ssm_out_multiplier});
  block->add("full_attention", std::make_unique<Attention>(c.attention, loader.scoped("self_attn")),
             {c.attention_in_multiplier, c.attention_out_multiplier});
  block->begin_half(RmsNorm(loader, "pre_ff_layernorm", c.hidden_size, c.rms_norm_eps));
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = c.intermediate_size;
  mlp.bias = c.mlp_bias;
  mlp.gate_multiplier = c.mlp_multipliers[0];
  mlp.down_multiplier = c.mlp_multipliers[1];
  const WeightLoader feed_forward = loader.scoped("feed_forward");
  block->add("mlp", std::make_unique<Mlp>(mlp, feed_forward), {}, layer_name_of(feed_forward));
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const FalconH1Config c = read_config(context.config_json, context.config_path);
  context.config.mamba_chunk_size = c.mamba.chunk_size;
  DecoderConfig decoder = decoder_config("falcon_h1", c, c.rms_norm_eps);
  decoder.embedding_multiplier = c.embedding_multiplier;
  decoder.logits_scale = c.lm_head_multiplier;
  decoder.norm = "final_layernorm";
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kFalconH1({"falcon_h1", {"FalconH1ForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
