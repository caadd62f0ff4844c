// SPDX-License-Identifier: Apache-2.0
//
// DeltaNet (Yang et al., 2024) and Gated DeltaNet (Yang et al., 2024) as flash-linear-attention publishes them: the
// second forgets; the first chooses activation and norm of its queries and keys.
#include "base/error.h"
#include "base/json.h"
#include "coluber/registry.h"
#include "formats/hf_config.h"
#include "layers/gated_delta_net.h"
#include "models/delta_fields.h"
#include "models/fla_decoder.h"
#include "models/sizes.h"

namespace coluber {
namespace {

struct DeltaNetConfig {
  FlaConfig fla;
  GatedDeltaNetConfig mixer;
};

void read_delta_net(ConfigFields& fields, GatedDeltaNetConfig& mixer) {
  bool output_norm = true;
  std::string activation, norm;
  const int64_t keys = read_expanded_width(fields, mixer.hidden_size, "expand_k", 1.0);
  const int64_t values = read_expanded_width(fields, mixer.hidden_size, "expand_v", 1.0);
  fields.optional("num_heads", &mixer.num_v_heads, 4, heads_bound())
      .optional("use_gate", &mixer.output_gate, false)
      .optional("use_beta", &mixer.beta, true)
      .optional("use_output_norm", &output_norm, true)
      .optional("qk_activation", &activation, "silu", one_of({"silu", "relu", "elu", "identity"}))
      .optional("qk_norm", &norm, "l2", one_of({"l2", "sum"}))
      .check([&] { return keys % mixer.num_v_heads == 0 && values % mixer.num_v_heads == 0; },
             "num_heads must divide hidden_size * expand_k and hidden_size * expand_v")
      .check([&] { return keys / mixer.num_v_heads <= kMaxDeltaKeyDim; },
             fmt::format("hidden_size * expand_k / num_heads must be at most {}", kMaxDeltaKeyDim))
      .check([&] { return output_norm; }, "use_output_norm must be true: the published modelling code has no other");
  if (!fields.ok()) return;
  mixer.num_k_heads = mixer.num_v_heads;
  mixer.head_k_dim = keys / mixer.num_v_heads;
  mixer.head_v_dim = values / mixer.num_v_heads;
  mixer.decay = false;
  mixer.key_activation = activation == "silu"   ? DeltaKeyActivation::kSilu
                         : activation == "relu" ? DeltaKeyActivation::kRelu
                         : activation == "elu"  ? DeltaKeyActivation::kElu
                                                : DeltaKeyActivation::kNone;
  mixer.key_norm = norm == "l2" ? DeltaKeyNorm::kL2 : DeltaKeyNorm::kSum;
}

void read_gated_delta_net(ConfigFields& fields, GatedDeltaNetConfig& mixer) {
  std::string gate;
  fields.optional("num_heads", &mixer.num_k_heads, 6, heads_bound());
  fields.optional("num_v_heads", &mixer.num_v_heads, mixer.num_k_heads, heads_bound())
      .optional("head_dim", &mixer.head_k_dim, 256, between(1, kMaxDeltaKeyDim))
      .optional("use_gate", &mixer.output_gate, true)
      .optional("output_gate_activation", &gate, "swish", one_of({"swish", "silu", "sigmoid"}))
      .check([&] { return mixer.num_v_heads % mixer.num_k_heads == 0; }, "num_heads must divide num_v_heads");
  mixer.head_v_dim = read_expanded_width(fields, mixer.head_k_dim, "expand_v", 2.0);
  mixer.output_gate_function = gate == "sigmoid" ? Gate::kSigmoid : Gate::kSilu;
}

DeltaNetConfig read_config(const std::string& text, const std::string& path, bool gated) {
  const Json json = parse_config(text, path);
  ConfigFields fields(json, path);
  DeltaNetConfig c;
  c.fla = read_fla_fields(fields, 4, true);
  c.mixer.hidden_size = c.fla.hidden_size;
  c.mixer.conv_kernel = c.fla.conv_size;
  c.mixer.norm_eps = c.fla.norm_eps;
  c.mixer.stored_convs = c.fla.use_short_conv;
  if (!c.fla.use_short_conv) c.mixer.conv_kernel = 2;
  fields.optional("allow_neg_eigval", &c.mixer.allow_neg_eigval, false);
  if (gated) {
    read_gated_delta_net(fields, c.mixer);
  } else {
    read_delta_net(fields, c.mixer);
  }
  if (fields.ok()) check_delta_widths(fields, c.mixer, "heads times head dim, of keys and of values,");
  fields.finish();
  return c;
}

std::unique_ptr<Model> load(ModelLoadContext& context, bool gated) {
  const DeltaNetConfig c = read_config(context.config_json, context.config_path, gated);
  const auto add_mixer = [&](ResidualBlock& block, const BlockContext&, const WeightLoader& attn) {
    block.add("gdn", std::make_unique<GatedDeltaNet>(c.mixer, attn));
  };
  return make_fla_decoder(context, gated ? "gated_deltanet" : "delta_net", c.fla, 0, add_mixer);
}

const RegisterModel kDeltaNet({"delta_net",
                               {"DeltaNetForCausalLM"},
                               [](ModelLoadContext& context) { return load(context, false); },
                               {},
                               /*runs_on_cuda=*/true});
const RegisterModel kGatedDeltaNet({"gated_deltanet",
                                    {"GatedDeltaNetForCausalLM"},
                                    [](ModelLoadContext& context) { return load(context, true); },
                                    {},
                                    /*runs_on_cuda=*/true});

}  // namespace
}  // namespace coluber
