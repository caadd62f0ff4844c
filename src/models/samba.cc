// SPDX-License-Identifier: Apache-2.0
//
// Samba (Ren et al., 2024) as flash-linear-attention publishes it: Mamba mixers, softmax attention over a sliding
// window in the layers of `attn`, and a gated MLP behind each. x = x + mixer(mixer_norm(x)); x = x + mlp(mlp_norm(x)).
#include <algorithm>
#include <memory>

#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/mamba_mixer.h"
#include "layers/mlp.h"
#include "layers/recurrent_layer.h"
#include "models/decoder.h"
#include "models/fla_decoder.h"
#include "models/hybrid_fields.h"
#include "models/residual_block.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct SambaConfig {
  FlaConfig fla;  // its intermediate_size is here the mixer's
  int64_t mlp_size = 0;
  MambaMixerConfig mamba;
};

// Without `attn`: every second layer, as the first release had it, with the fields beside the others; where these are
// not there either, today's default, which ends at layer 17.
void read_attention_without_list(ConfigFields& fields, const Json& json, FlaConfig& c) {
  constexpr int64_t kHeads = 18, kWindow = 2048, kLayers = 18;
  AttentionConfig attention;
  attention.hidden_size = c.hidden_size;
  fields.optional("num_heads", &attention.num_heads, kHeads, heads_bound())
      .optional("num_kv_heads", &attention.num_kv_heads, attention.num_heads, heads_bound())
      .optional("window_size", &attention.sliding_window, json.find("window_size") == nullptr ? kWindow : 0, positive())
      .check([&] { return c.hidden_size % (2 * attention.num_heads) == 0; },
             fmt::format(
                 "attn: missing; without it num_heads ({}) must divide half of hidden_size. Say attn, or null for none",
                 attention.num_heads))
      .check([&] { return attention.num_heads % attention.num_kv_heads == 0; }, "num_kv_heads must divide num_heads");
  if (!fields.ok()) return;
  attention.head_dim = c.hidden_size / attention.num_heads;
  attention.rope = RopeConfig{};  // base 10000, the whole head
  c.attention = attention;
  const int64_t layers = fields.has("num_heads") ? c.num_hidden_layers : std::min(c.num_hidden_layers, kLayers);
  for (int64_t i = 1; i < layers; i += 2) c.attention_layers.push_back(i);
}

void read_mixer(ConfigFields& fields, SambaConfig& c) {
  MambaMixerConfig& mixer = c.mamba;
  const int64_t hidden = c.fla.hidden_size;
  fields.optional("state_size", &mixer.state_size, 16, width_bound())
      .optional("conv_kernel", &mixer.conv_kernel, 4, between(2, 8))
      .optional("use_bias", &mixer.use_bias, false)
      .optional("use_conv_bias", &mixer.use_conv_bias, true);
  mixer.time_step_rank = read_int_or_auto(fields, "time_step_rank", (hidden + 15) / 16, width_bound());
  const int64_t expanded = read_expanded_width(fields, hidden, "expand", 2.0);
  mixer.hidden_size = hidden;
  mixer.intermediate_size = fields.has("intermediate_size") ? c.fla.intermediate_size : expanded;
}

SambaConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  SambaConfig c;
  c.fla = read_fla_fields(fields, 4, false);
  if (!fields.has("norm_eps")) c.fla.norm_eps = 1e-5;
  if (json.find("attn") == nullptr) read_attention_without_list(fields, json, c.fla);
  read_mixer(fields, c);
  int64_t ratio = 0;
  if (fields.ok()) fields.optional("hidden_ratio", &ratio, 4);  // its bounds are checked above
  c.mlp_size = (c.fla.hidden_size * ratio * 2 / 3 + 255) / 256 * 256;
  fields
      .check([&] { return c.mlp_size <= kMostWidth; },
             fmt::format("hidden_size * hidden_ratio * 2/3 must be at most {}", kMostWidth))
      .check(!fields.has("attnres_block_size"),
             "attnres_block_size must be null: residuals that attend to earlier blocks are not supported")
      .finish();
  return c;
}

void add_mixer(ResidualBlock& block, const SambaConfig& c, const BlockContext& context) {
  const WeightLoader loader = context.layer.scoped("mixer");
  if (c.fla.is_attention(context.index)) {
    block.add("full_attention", std::make_unique<Attention>(*c.fla.attention, loader));
    return;
  }
  MambaMixerConfig mixer = c.mamba;
  // Of use_conv_bias false the modelling code takes no notice since 2025, and such files have the bias.
  mixer.use_conv_bias = mixer.use_conv_bias || loader.has("conv1d.bias");
  block.add("mamba1", std::make_unique<MambaMixer>(mixer, loader));
}

std::unique_ptr<DecoderBlock> make_block(const SambaConfig& c, const BlockContext& context) {
  auto block = std::make_unique<ResidualBlock>(c.fla.hidden_size);
  block->begin_half(RmsNorm(context.layer, "mixer_norm", c.fla.hidden_size, c.fla.norm_eps));
  add_mixer(*block, c, context);
  block->begin_half(RmsNorm(context.layer, "mlp_norm", c.fla.hidden_size, c.fla.norm_eps));
  const WeightLoader loader = context.layer.scoped("mlp");
  MlpConfig mlp;
  mlp.hidden_size = c.fla.hidden_size;
  mlp.intermediate_size = c.mlp_size;
  // Older files: rows of the gate, then of what it gates, in one weight.
  if (loader.shape_of("gate_proj.weight") == Shape{2 * c.mlp_size, c.fla.hidden_size}) mlp.gate_up = "gate_proj";
  block->add("mlp", std::make_unique<Mlp>(mlp, loader), {}, layer_name_of(loader));
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const SambaConfig c = read_config(context.config_json, context.config_path);
  DecoderConfig decoder = decoder_config("samba", c.fla, c.fla.norm_eps);
  // A window moves along; without one, positions beyond those of the training are new to the model.
  if (!c.fla.attention || c.fla.attention->sliding_window != 0) decoder.max_position_embeddings = 0;
  decoder.base = "backbone";
  decoder.embed_tokens = "embeddings";
  decoder.norm = "norm_f";
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kSamba({"samba", {"SambaForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
