// SPDX-License-Identifier: Apache-2.0
//
// Mamba and Mamba-2 as the state-spaces repositories publish them: a config without model_type (d_model, n_layer,
// ssm_cfg, attn_layer_idx, attn_cfg), a vocabulary that is padded, `backbone.embedding`. x = x + mixer(norm(x)). The
// layers that attn_layer_idx names are attention behind a causal convolution; with several groups the mixer's norm
// works by group. With d_intermediate an MLP follows: x = x + mlp(norm2(x)).
#include <algorithm>
#include <variant>

#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/conv_attention.h"
#include "layers/mamba_mixer.h"
#include "layers/mamba_mixer2.h"
#include "layers/mlp.h"
#include "layers/norm.h"
#include "layers/recurrent_layer.h"
#include "models/decoder.h"
#include "models/hybrid_fields.h"
#include "models/residual_block.h"
#include "models/sizes.h"

namespace coluber {
namespace {

constexpr double kNormEps = 1e-5;      // the package has no field for it
constexpr int64_t kMlpMultiple = 128;  // what the package rounds d_intermediate up to

struct MambaSsmConfig {
  int64_t vocab_size = 0, d_model = 0, n_layer = 0, chunk_size = 256;  // vocab_size: with the padding
  int64_t d_intermediate = 0;  // of the MLP behind every mixer, as rounded up; 0: none
  bool tie_embeddings = true, rms_norm = true;
  std::optional<MambaMixerConfig> mamba;    // ssm_cfg.layer "Mamba1"
  std::optional<MambaMixer2Config> mamba2;  // "Mamba2"
  std::vector<int64_t> attn_layer_idx;
  ConvAttentionConfig attention;

  bool is_attention(int64_t layer) const {
    return std::find(attn_layer_idx.begin(), attn_layer_idx.end(), layer) != attn_layer_idx.end();
  }
};

MambaMixerConfig read_mamba1(ConfigFields& ssm, int64_t d_model, int64_t inner) {
  MambaMixerConfig mixer;
  ssm.optional("d_state", &mixer.state_size, 16, width_bound())
      .optional("d_conv", &mixer.conv_kernel, 4, between(2, 8))
      .optional("conv_bias", &mixer.use_conv_bias, true)
      .optional("bias", &mixer.use_bias, false);
  mixer.time_step_rank = read_int_or_auto(ssm, "dt_rank", (d_model + 15) / 16, width_bound());
  mixer.hidden_size = d_model;
  mixer.intermediate_size = inner;
  return mixer;
}

MambaMixer2Config read_mamba2(ConfigFields& ssm, MambaSsmConfig& c, int64_t inner) {
  MambaMixer2Config mixer;
  bool rms_norm = true, norm_before_gate = false, d_has_hdim = false;
  std::vector<double> dt_limit;
  ssm.optional("headdim", &mixer.head_dim, 64, head_dim_bound())
      .optional("d_state", &mixer.state_size, 128, between(1, 1 << 16))
      .optional("ngroups", &mixer.n_groups, 1, heads_bound())
      .optional("d_conv", &mixer.conv_kernel, 4, between(2, 8))
      .optional("conv_bias", &mixer.use_conv_bias, true)
      .optional("bias", &mixer.use_bias, false)
      .optional("rmsnorm", &rms_norm, true)
      .optional("norm_before_gate", &norm_before_gate, false)
      .optional("chunk_size", &c.chunk_size, 256, positive())
      .optional("dt_limit", &dt_limit, {0.0, kInfinity}, at_least(0))
      .optional("D_has_hdim", &d_has_hdim, false)
      .check([&] { return inner % mixer.head_dim == 0; }, "headdim must divide expand * d_model")
      .check([&] { return inner / mixer.head_dim % mixer.n_groups == 0; },
             "ngroups must divide the heads, expand * d_model / headdim")
      .check(
          [&] { return inner / mixer.head_dim <= 1 << 16 && mixer.n_groups * mixer.state_size <= kMostWidth; },
          fmt::format("there may be at most {} heads, and ngroups * d_state must be at most {}", 1 << 16, kMostWidth))
      .check([&] { return dt_limit.size() == 2 && dt_limit[0] <= dt_limit[1]; },
             "dt_limit must be two numbers, the lower first")
      .check([&] { return !d_has_hdim; }, "D_has_hdim is not supported; expected one D a head");
  mixer.hidden_size = c.d_model;
  mixer.num_heads = inner / mixer.head_dim;
  mixer.use_out_bias = mixer.use_bias;
  mixer.norm_groups = mixer.n_groups;
  mixer.norm_eps = kNormEps;
  mixer.gate = !rms_norm          ? MixerGate::kGateOnly
               : norm_before_gate ? MixerGate::kNormThenGate
                                  : MixerGate::kGateThenNorm;
  if (dt_limit.size() == 2) {
    mixer.time_step_min = dt_limit[0];
    mixer.time_step_max = dt_limit[1];
  }
  return mixer;
}

void read_mixer(ConfigFields& fields, MambaSsmConfig& c) {
  ConfigFields ssm = fields.nested("ssm_cfg");
  std::string layer;
  int64_t expand = 0;
  ssm.optional("layer", &layer, "Mamba1", one_of({"Mamba1", "Mamba2"}))
      .optional("expand", &expand, 2, between(1, 1 << 10))
      .check([&] { return expand * c.d_model <= kMostWidth; },
             fmt::format("expand * d_model must be at most {}", kMostWidth));
  if (layer == "Mamba2")
    c.mamba2 = read_mamba2(ssm, c, expand * c.d_model);
  else
    c.mamba = read_mamba1(ssm, c.d_model, expand * c.d_model);
}

void read_attention(ConfigFields& fields, MambaSsmConfig& c) {
  fields.optional("attn_layer_idx", &c.attn_layer_idx, {}, between(0, static_cast<double>(c.n_layer - 1)));
  ConfigFields attn = fields.nested("attn_cfg");
  if (c.attn_layer_idx.empty()) return;
  SoftmaxAttentionConfig& attention = c.attention.attention;
  double scale = 0, base = 0;
  int64_t rotary_dim = 0, mlp_dim = 0;
  bool causal = false, interleaved = false;
  attn.required("num_heads", &attention.num_heads, heads_bound());
  attn.optional("num_heads_kv", &attention.num_kv_heads, attention.num_heads, heads_bound())
      .optional("head_dim", &attention.head_dim, std::max<int64_t>(c.d_model / attention.num_heads, 1),
                head_dim_bound())
      .optional("d_conv", &c.attention.conv_kernel, 0, between(0, 8))
      .optional("qkv_proj_bias", &c.attention.qkv_bias, true)
      .optional("out_proj_bias", &c.attention.out_bias, true)
      .optional("softmax_scale", &scale, 0.0, at_least(0))
      .optional("rotary_emb_dim", &rotary_dim, 0, at_least(0))
      .optional("rotary_emb_base", &base, 10000.0, positive_finite())
      .optional("rotary_emb_interleaved", &interleaved, false)
      .optional("mlp_dim", &mlp_dim, 0, at_least(0))
      .optional("causal", &causal, false)
      .check([&] { return causal; }, "attn_cfg.causal must be true: a language model's attention looks back only")
      .check([&] { return mlp_dim == 0; }, "attn_cfg.mlp_dim is not supported; expected 0")
      .check([&] { return c.attention.conv_kernel != 1; }, "attn_cfg.d_conv must be 0 or from 2 to 8")
      .check([&] { return attention.num_heads % attention.num_kv_heads == 0; }, "num_heads_kv must divide num_heads")
      .check([&] { return attention.num_heads * attention.head_dim <= kMostWidth; },
             fmt::format("num_heads * head_dim must be at most {}", kMostWidth))
      .check([&] { return rotary_dim % 2 == 0 && rotary_dim <= attention.head_dim; },
             "rotary_emb_dim must be even and at most head_dim");
  c.attention.hidden_size = c.d_model;
  if (scale > 0) attention.scale = scale;
  if (rotary_dim == 0) return;
  attention.rope.emplace();
  attention.rope->theta = base;
  attention.rope->rotary_dim = rotary_dim;
  attention.rope->interleaved = interleaved;
}

MambaSsmConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  MambaSsmConfig c;
  int64_t multiple = 0;
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("d_model", &c.d_model, hidden_bound())
      .required("n_layer", &c.n_layer, layers_bound())
      .optional("pad_vocab_size_multiple", &multiple, 8, between(1, 1 << 20))
      .optional("d_intermediate", &c.d_intermediate, 0, between(0, static_cast<double>(kMostWidth) / 2))
      .optional("rms_norm", &c.rms_norm, true)
      .optional("tie_embeddings", &c.tie_embeddings, true);
  read_mixer(fields, c);
  read_attention(fields, c);
  fields.finish();
  c.vocab_size = (c.vocab_size + multiple - 1) / multiple * multiple;
  c.d_intermediate = (c.d_intermediate + kMlpMultiple - 1) / kMlpMultiple * kMlpMultiple;
  return c;
}

std::variant<RmsNorm, LayerNorm> make_norm(const MambaSsmConfig& c, const WeightLoader& loader, const char* name) {
  if (c.rms_norm) return RmsNorm(loader, name, c.d_model, kNormEps);
  return LayerNorm(loader, name, c.d_model, kNormEps);
}

void add_mlp(ResidualBlock& block, const MambaSsmConfig& c, const WeightLoader& layer) {
  MlpConfig mlp;
  mlp.hidden_size = c.d_model;
  mlp.intermediate_size = c.d_intermediate;
  mlp.gate_up = "fc1";
  mlp.up_first = true;
  mlp.down = "fc2";
  const WeightLoader loader = layer.scoped("mlp");
  block.begin_half(make_norm(c, layer, "norm2"));
  block.add("mlp", std::make_unique<Mlp>(mlp, loader), {}, layer_name_of(loader));
}

std::unique_ptr<DecoderBlock> make_block(const MambaSsmConfig& c, const BlockContext& context) {
  const WeightLoader mixer = context.layer.scoped("mixer");
  auto block = std::make_unique<ResidualBlock>(c.d_model);
  block->begin_half(make_norm(c, context.layer, "norm"));
  if (c.is_attention(context.index)) {
    auto attention = std::make_unique<ConvAttention>(c.attention, mixer);
    std::vector<LayerInfo> infos;
    if (const CausalConv* conv = attention->conv()) infos.push_back({conv->layer_name(), "short_conv", conv});
    infos.push_back({attention->attention().layer_name(), "full_attention", &attention->attention()});
    block->add_as(std::move(infos), std::move(attention));
  } else if (c.mamba2) {
    block->add("mamba2", std::make_unique<MambaMixer2>(*c.mamba2, mixer));
  } else {
    block->add("mamba1", std::make_unique<MambaMixer>(*c.mamba, mixer));
  }
  if (c.d_intermediate > 0) add_mlp(*block, c, context.layer);
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const MambaSsmConfig c = read_config(context.config_json, context.config_path);
  if (c.mamba2) context.config.mamba_chunk_size = c.chunk_size;
  DecoderConfig decoder;
  decoder.architecture = "mamba_ssm";
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.d_model;
  decoder.num_layers = c.n_layer;
  decoder.norm_eps = kNormEps;
  decoder.layer_norm = !c.rms_norm;
  decoder.tied = c.tie_embeddings;
  decoder.base = "backbone";
  decoder.embed_tokens = "embedding";
  decoder.norm = "norm_f";
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

bool recognizes(const std::string& config_json, const WeightSource& weights) {
  return config_json.find("\"d_model\"") != std::string::npos && config_json.find("\"n_layer\"") != std::string::npos &&
         weights.contains("backbone.embedding.weight") && weights.contains("backbone.layers.0.norm.weight");
}

const RegisterModel kMambaSsm({"mamba_ssm", {"MambaLMHeadModel"}, load, recognizes, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
