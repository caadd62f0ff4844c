// SPDX-License-Identifier: Apache-2.0
#include "models/delta_fields.h"

#include "base/error.h"
#include "models/hybrid_fields.h"
#include "models/sizes.h"

namespace coluber {

GatedDeltaNetConfig read_delta_fields(ConfigFields& fields, const GatedDeltaNetConfig& defaults) {
  GatedDeltaNetConfig c = defaults;
  fields.optional("linear_num_key_heads", &c.num_k_heads, defaults.num_k_heads, heads_bound())
      .optional("linear_num_value_heads", &c.num_v_heads, defaults.num_v_heads, heads_bound())
      .optional("linear_key_head_dim", &c.head_k_dim, defaults.head_k_dim, between(1, kMaxDeltaKeyDim))
      .optional("linear_value_head_dim", &c.head_v_dim, defaults.head_v_dim, head_dim_bound())
      .optional("linear_conv_kernel_dim", &c.conv_kernel, defaults.conv_kernel, between(2, kMaxConvWidth))
      .check([&] { return c.num_v_heads % c.num_k_heads == 0; },
             "linear_num_key_heads must divide linear_num_value_heads");
  check_delta_widths(fields, c, "linear_num_*_heads * linear_*_head_dim");
  return c;
}

void check_delta_widths(ConfigFields& fields, const GatedDeltaNetConfig& config, const std::string& names) {
  fields.check([&] { return config.key_width() <= kMostWidth && config.value_width() <= kMostWidth; },
               fmt::format("{} must be at most {}", names, kMostWidth));
}

std::vector<std::string> read_delta_layer_types(ConfigFields& fields, int64_t num_layers) {
  int64_t interval = 0;
  std::vector<std::string> kinds = read_layer_kinds(fields, {"layer_types"}, {"linear_attention", "full_attention"});
  fields.optional("full_attention_interval", &interval, 4, positive());
  if (!fields.has("layer_types") && fields.ok()) {
    for (int64_t i = 0; i < num_layers; ++i)
      kinds.push_back((i + 1) % interval == 0 ? "full_attention" : "linear_attention");
  }
  fields.check([&] { return static_cast<int64_t>(kinds.size()) == num_layers; },
               "layer_types must name num_hidden_layers layers");
  return kinds;
}

}  // namespace coluber
