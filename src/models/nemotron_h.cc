// SPDX-License-Identifier: Apache-2.0
//
// Nemotron-H (NVIDIA, 2025): layers of Mamba-2, attention without positions, an MLP, or experts, one of them a layer,
// as a pattern says. x = x + mixer(norm(x)). MLPs and experts are not gated: down(relu(up(x))^2).
#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/mamba_mixer2.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/recurrent_layer.h"
#include "models/activation_field.h"
#include "models/decoder.h"
#include "models/expert_fields.h"
#include "models/hybrid_fields.h"
#include "models/residual_block.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct NemotronHConfig {
  int64_t vocab_size = 0, hidden_size = 0, max_position_embeddings = 0, intermediate_size = 0, chunk_size = 0;
  int64_t n_routed_experts = 0, n_shared_experts = 0, num_experts_per_tok = 0, moe_intermediate_size = 0;
  int64_t moe_shared_expert_intermediate_size = 0, moe_latent_size = 0, n_group = 1, topk_group = 1;
  double layer_norm_epsilon = 0, routed_scaling_factor = 1;
  bool tie_word_embeddings = false, mlp_bias = false, norm_topk_prob = true;
  Activation activation = Activation::kRelu2;
  std::vector<std::string> layer_kinds;
  AttentionConfig attention;
  MambaMixer2Config mamba;

  bool has(const char* kind) const { return std::count(layer_kinds.begin(), layer_kinds.end(), kind) > 0; }
};

// A list of kinds, or a pattern of one letter a layer. What num_hidden_layers says beside either does not count.
void read_layers(ConfigFields& fields, NemotronHConfig& c) {
  c.layer_kinds = read_layer_kinds(fields, {"layers_block_type", "layer_types"},
                                   {"linear_attention", "full_attention", "mlp", "moe"});
  std::string pattern;
  fields.optional("hybrid_override_pattern", &pattern, "");
  if (c.layer_kinds.empty()) {
    const std::map<char, const char*> kinds = {
        {'M', "linear_attention"}, {'*', "full_attention"}, {'-', "mlp"}, {'E', "moe"}};
    for (const char letter : pattern) {
      const auto kind = kinds.find(letter);
      if (kind == kinds.end()) {
        fields.problem("hybrid_override_pattern",
                       "expected one letter a layer: M (Mamba-2), * (attention), - (MLP), E (experts); found " +
                           Json(std::string(1, letter)).dump());
        break;
      }
      c.layer_kinds.emplace_back(kind->second);
    }
  }
  const auto count = static_cast<double>(c.layer_kinds.size());
  fields.check([&] { return count > 0 && layers_bound().number(count); },
               "expected layers_block_type or hybrid_override_pattern, which say what each layer is; found neither");
}

void read_mixer(ConfigFields& fields, NemotronHConfig& c) {
  MambaMixer2Config& mixer = c.mamba;
  std::string act;
  fields.alias("n_groups", {"mamba_n_groups"})
      .alias("conv_kernel", {"mamba_d_conv"})
      .alias("time_step_min", {"mamba_dt_min"})
      .alias("use_conv_bias", {"mamba_conv_bias"})
      .alias("chunk_size", {"mamba_chunk_size"});
  fields.optional("mamba_num_heads", &mixer.num_heads, 128, heads_bound())
      .optional("mamba_head_dim", &mixer.head_dim, 64, head_dim_bound())
      .optional("ssm_state_size", &mixer.state_size, 128, between(1, 1 << 16))
      .optional("n_groups", &mixer.n_groups, 8, heads_bound())
      .optional("conv_kernel", &mixer.conv_kernel, 4, between(2, 8))
      .optional("use_conv_bias", &mixer.use_conv_bias, true)
      .optional("use_bias", &mixer.use_bias, false)
      .optional("time_step_min", &mixer.time_step_min, 0.001, at_least(0))
      .optional("chunk_size", &c.chunk_size, 128, positive())
      .optional("mamba_hidden_act", &act, "silu", one_of({"silu", "swish"}));
  mixer.hidden_size = c.hidden_size;
  mixer.use_out_bias = mixer.use_bias;
  mixer.norm_eps = c.layer_norm_epsilon;
  mixer.norm_groups = mixer.n_groups;
  if (!c.has("linear_attention")) return;
  fields
      .check(
          [&] { return mixer.intermediate_size() <= kMostWidth && mixer.n_groups * mixer.state_size <= kMostWidth; },
          fmt::format("mamba_num_heads * mamba_head_dim and n_groups * ssm_state_size must be at most {}", kMostWidth))
      .check([&] { return mixer.num_heads % mixer.n_groups == 0; }, "n_groups must divide mamba_num_heads");
}

void read_experts(ConfigFields& fields, NemotronHConfig& c) {
  fields.alias("n_routed_experts", {"num_local_experts"});
  fields.optional("n_routed_experts", &c.n_routed_experts, 8, experts_bound())
      .optional("n_shared_experts", &c.n_shared_experts, 1, between(0, 1 << 14))
      .optional("num_experts_per_tok", &c.num_experts_per_tok, 2, experts_bound())
      .optional("moe_intermediate_size", &c.moe_intermediate_size, 7688, width_bound())
      .optional("moe_shared_expert_intermediate_size", &c.moe_shared_expert_intermediate_size, 7688, width_bound())
      .optional("moe_latent_size", &c.moe_latent_size, 0, width_bound())
      .optional("n_group", &c.n_group, 1, experts_bound())
      .optional("topk_group", &c.topk_group, 1, experts_bound())
      .optional("norm_topk_prob", &c.norm_topk_prob, true)
      .optional("routed_scaling_factor", &c.routed_scaling_factor, 1.0, finite());
  if (!c.has("moe")) return;
  check_expert_groups(fields, {c.n_routed_experts, c.num_experts_per_tok, c.n_group, c.topk_group});
}

NemotronHConfig read_config(const std::string& text, const std::string& path) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  NemotronHConfig c;
  fields.alias("layer_norm_epsilon", {"norm_eps", "rms_norm_eps"}).alias("head_dim", {"attention_head_dim"});
  fields.required("vocab_size", &c.vocab_size, vocab_bound())
      .required("hidden_size", &c.hidden_size, hidden_bound())
      .optional("intermediate_size", &c.intermediate_size, 21504, width_bound())
      .optional("max_position_embeddings", &c.max_position_embeddings, 4096, positive())
      .optional("layer_norm_epsilon", &c.layer_norm_epsilon, 1e-5, positive_finite())
      .optional("mlp_bias", &c.mlp_bias, false)
      .optional("tie_word_embeddings", &c.tie_word_embeddings, false);
  c.activation = read_activation(fields, "mlp_hidden_act", "relu2");
  read_layers(fields, c);
  read_mixer(fields, c);
  read_experts(fields, c);
  c.attention = read_attention_fields(fields, c.hidden_size, 8, 128);
  fields.finish();
  return c;
}

MlpConfig mlp_config(const NemotronHConfig& c, int64_t intermediate_size) {
  MlpConfig mlp;
  mlp.hidden_size = c.hidden_size;
  mlp.intermediate_size = intermediate_size;
  mlp.bias = c.mlp_bias;
  mlp.gate = "";
  mlp.activation = c.activation;
  return mlp;
}

MoeConfig moe_config(const NemotronHConfig& c, bool has_shared) {
  MoeConfig moe;
  moe.hidden_size = c.hidden_size;
  moe.intermediate_size = c.moe_intermediate_size;
  moe.num_experts = c.n_routed_experts;
  moe.top_k = c.num_experts_per_tok;
  moe.renormalize = c.norm_topk_prob;
  moe.epsilon = 1e-20;
  moe.scale = c.routed_scaling_factor;
  moe.score = RouterScore::kSigmoid;
  moe.selection_bias = "gate.e_score_correction_bias";
  moe.num_groups = c.n_group;
  moe.topk_groups = c.topk_group;
  moe.w1 = "up_proj";
  moe.w3 = "";
  moe.w2 = "down_proj";
  moe.activation = c.activation;
  moe.latent_size = c.moe_latent_size;
  moe.latent_bias = c.mlp_bias;
  if (has_shared) moe.shared = mlp_config(c, c.moe_shared_expert_intermediate_size);
  return moe;
}

std::unique_ptr<DecoderBlock> make_block(const NemotronHConfig& c, const BlockContext& context) {
  const std::string& kind = c.layer_kinds[static_cast<size_t>(context.index)];
  const WeightLoader mixer = context.layer.scoped("mixer");
  auto block = std::make_unique<ResidualBlock>(c.hidden_size);
  block->begin_half(RmsNorm(context.layer, "norm", c.hidden_size, c.layer_norm_epsilon));
  if (kind == "linear_attention") {
    block->add("mamba2", std::make_unique<MambaMixer2>(c.mamba, mixer));
  } else if (kind == "full_attention") {
    // transformers reads no bias whatever attention_bias says, and writes none: the checkpoint decides.
    AttentionConfig attention = c.attention;
    attention.qkv_bias = mixer.has("q_proj.bias");
    attention.out_bias = mixer.has("o_proj.bias");
    block->add("full_attention", std::make_unique<Attention>(attention, mixer));
  } else if (kind == "mlp") {
    block->add("mlp", std::make_unique<Mlp>(mlp_config(c, c.intermediate_size), mixer), {}, layer_name_of(mixer));
  } else {
    // transformers has a shared expert whatever n_shared_experts says; others have none at 0: the checkpoint decides.
    const bool has_shared = c.n_shared_experts > 0 || mixer.has("shared_experts.up_proj.weight");
    block->add("moe", std::make_unique<MoeBlock>(moe_config(c, has_shared), mixer), {}, layer_name_of(mixer));
  }
  return block;
}

std::unique_ptr<Model> load(ModelLoadContext& context) {
  const NemotronHConfig c = read_config(context.config_json, context.config_path);
  context.config.mamba_chunk_size = c.chunk_size;
  DecoderConfig decoder;
  decoder.architecture = "nemotron_h";
  decoder.vocab_size = c.vocab_size;
  decoder.hidden_size = c.hidden_size;
  decoder.num_layers = static_cast<int64_t>(c.layer_kinds.size());
  decoder.max_position_embeddings = c.max_position_embeddings;
  decoder.norm_eps = c.layer_norm_epsilon;
  // transformers never ties here: a stored head is the head whatever the config says.
  decoder.tied = c.tie_word_embeddings && !context.weights.contains("lm_head.weight");
  decoder.base = context.weights.contains("model.embeddings.weight") ? "model" : "backbone";
  decoder.embed_tokens = "embeddings";
  decoder.norm = "norm_f";
  decoder.ignored = {{"mtp.", "heads that predict several tokens at once"}};
  return std::make_unique<Decoder>(context, decoder, [&](const BlockContext& block) { return make_block(c, block); });
}

const RegisterModel kNemotronH({"nemotron_h", {"NemotronHForCausalLM"}, load, {}, /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
