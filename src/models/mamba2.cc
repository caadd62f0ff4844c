// SPDX-License-Identifier: Apache-2.0
//
// Mamba-2 (Dao and Gu, 2024). Per layer: x = x + mixer(norm(x)). The gated norm of the mixer goes by group
// or spans them all (formats/norm_groups.h), and dt is clamped to time_step_limit in every step.
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/mamba_mixer2.h"
#include "layers/norm.h"
#include "models/decoder.h"
#include "models/hybrid_fields.h"
#include "models/residual_block.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct Mamba2Config {
  int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0;
  int64_t num_heads = 0, head_dim = 0, state_size = 0, n_groups = 0, norm_groups = 0, conv_kernel = 0, expand = 0,
          chunk_size = 0;
  double layer_norm_epsilon = 0;
  bool use_bias = false, use_conv_bias = true;
  std::optional<bool> tie_word_embeddings;
  std::vector<double> time_step_limit;
  std::string hidden_act;

  int64_t intermediate_size() const { return num_heads * head_dim; }
};

Mamba2Config read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  Mamba2Config c;
  fields.alias("hidden_size", {"d_model"}).alias("num_hidden_layers", {"n_layer"});
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .required("num_hidden_layers", &c.num_hidden_layers, layers_bound())
      .optional("head_dim", &c.head_dim, 64, head_dim_bound())
      .optional("expand", &c.expand, 2, between(1, 1 << 10));
  fields.optional("num_heads", &c.num_heads, std::max<int64_t>(c.expand * c.hidden_size / c.head_dim, 1), heads_bound())
      .optional("state_size", &c.state_size, 128, between(1, 1 << 16))
      .optional("n_groups", &c.n_groups, 8, heads_bound())
      .optional("conv_kernel", &c.conv_kernel, 4, between(2, 8))
      .optional("chunk_size", &c.chunk_size, 256, positive())
      .optional("layer_norm_epsilon", &c.layer_norm_epsilon, 1e-5, positive_finite())
      .optional("use_bias", &c.use_bias, false)
      .optional("use_conv_bias", &c.use_conv_bias, true)
      .optional("tie_word_embeddings", &c.tie_word_embeddings)
      .optional("time_step_limit", &c.time_step_limit, {0.0, kInfinity}, at_least(0))
      .optional("hidden_act", &c.hidden_act, "silu", one_of({"silu", "swish"}))
      .check([&] { return c.intermediate_size() == c.expand * c.hidden_size; },
             "num_heads * head_dim must be expand * hidden_size")
      .check([&] { return c.intermediate_size() <= kMostWidth && c.n_groups * c.state_size <= kMostWidth; },
             fmt::format("num_heads * head_dim and n_groups * state_size must be at most {}", kMostWidth))
      .check([&] { return c.num_heads % c.n_groups == 0; }, "n_groups must divide num_heads")
      .check([&] { return c.time_step_limit.size() == 2 && c.time_step_limit[0] <= c.time_step_limit[1]; },
             "time_step_limit must be two numbers, the lower first");
  c.norm_groups = read_norm_groups(fields, c.n_groups);
  fields.finish();
  return c;
}

MambaMixer2Config mixer_config(const Mamba2Config& c) {
  MambaMixer2Config mixer;
  mixer.hidden_size = c.hidden_size;
  mixer.num_heads = c.num_heads;
  mixer.head_dim = c.head_dim;
  mixer.state_size = c.state_size;
  mixer.n_groups = c.n_groups;
  mixer.conv_kernel = c.conv_kernel;
  mixer.use_bias = mixer.use_out_bias = c.use_bias;
  mixer.use_conv_bias = c.use_conv_bias;
  mixer.norm_eps = c.layer_norm_epsilon;
  mixer.norm_groups = c.norm_groups;
  mixer.time_step_min = c.time_step_limit[0];
  mixer.time_step_max = c.time_step_limit[1];
  return mixer;
}

// Both spellings are published.
std::string embedding_name(const WeightSource& weights) {
  return weights.contains("backbone.embedding.weight") ? "embedding" : "embeddings";
}

// Without a word on it, the head is the checkpoint's own where it has one.
bool is_tied(const WeightSource& weights, const Mamba2Config& c) {
  return c.tie_word_embeddings.value_or(!weights.contains("lm_head.weight"));
}

std::unique_ptr<DecoderBlock> make_block(const Mamba2Config& c, const BlockContext& context) {
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(context.layer, "norm", c.hidden_size, c.layer_norm_epsilon));
  block->add("mamba2", std::make_unique<MambaMixer2>(mixer_config(c), context.layer.scoped("mixer")));
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const Mamba2Config c = read_config(context.config_json, context.config_path);
  context.config.mamba_chunk_size = c.chunk_size;
  DecoderConfig decoder;
  decoder.architecture = "mamba2";
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.hidden_size;
  decoder.num_layers = c.num_hidden_layers;
  decoder.norm_eps = c.layer_norm_epsilon;
  decoder.tied = is_tied(context.weights, c);
  decoder.hidden_has_embedding = false;
  decoder.base = "backbone";
  decoder.embed_tokens = embedding_name(context.weights);
  decoder.norm = "norm_f";
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kMamba2({"mamba2", {"Mamba2ForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
