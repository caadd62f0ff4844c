// SPDX-License-Identifier: Apache-2.0
#include "models/rope_parameters.h"

namespace coluber {

namespace {

void read_scaling(ConfigFields& rope, RopeConfig& config) {
  std::string type;
  rope.alias("rope_type", {"type"});
  rope.optional("rope_type", &type, "default", one_of({"default", "linear", "llama3", "yarn"}));
  config.type = parse_rope_type(type).value_or(RopeType::kDefault);
  rope.optional("factor", &config.factor, 1.0, positive_finite())
      .optional("low_freq_factor", &config.low_freq_factor, 1.0, positive_finite())
      .optional("high_freq_factor", &config.high_freq_factor, 4.0, positive_finite())
      .optional("original_max_position_embeddings", &config.original_max_position_embeddings, 0, at_least(0))
      .optional("beta_fast", &config.beta_fast, 32.0, positive_finite())
      .optional("beta_slow", &config.beta_slow, 1.0, positive_finite())
      .optional("attention_factor", &config.attention_factor, positive_finite());
}

}  // namespace

RopeConfig read_rope_parameters(ConfigFields& fields, double default_theta, int64_t head_dim) {
  RopeConfig config;
  double partial = 1.0;
  fields.alias("rope_theta", {"theta"});
  fields.optional("rope_theta", &config.theta, default_theta, positive_finite())
      .optional("partial_rotary_factor", &partial, 1.0, between(1e-6, 1.0));
  ConfigFields scaling = fields.nested(fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  scaling.optional("rope_theta", &config.theta, config.theta, positive_finite())
      .optional("partial_rotary_factor", &partial, partial, between(1e-6, 1.0));
  read_scaling(scaling, config);
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  fields.optional("rotary_dim", &config.rotary_dim, config.rotary_dim, positive())
      .check([&] { return config.rotary_dim % 2 == 0 && config.rotary_dim <= head_dim; },
             "the rotated part of a head must be even and at most the head");
  return config;
}

}  // namespace coluber
