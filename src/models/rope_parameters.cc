// SPDX-License-Identifier: Apache-2.0
#include "models/rope_parameters.h"

namespace coluber {

namespace {

// How long the model was trained, where the scaling does not say it: as transformers fills it in.
int64_t trained_length(ConfigFields& fields) {
  int64_t length = 0;
  fields.optional("max_position_embeddings", &length, 0, at_least(0));
  fields.optional("original_max_position_embeddings", &length, length, at_least(0));
  return length;
}

void read_scaling(ConfigFields& fields, ConfigFields& rope, RopeConfig& config) {
  std::string type;
  rope.alias("rope_type", {"type"});
  rope.optional("rope_type", &type, "default", one_of({"default", "linear", "dynamic", "llama3", "yarn"}));
  // "dynamic" turns faster only beyond max_position_embeddings, and no sequence gets there.
  config.type = parse_rope_type(type).value_or(RopeType::kDefault);
  if (config.type == RopeType::kDefault) return;
  rope.optional("original_max_position_embeddings", &config.original_max_position_embeddings, trained_length(fields),
                at_least(0))
      .required("factor", &config.factor, positive_finite())
      .optional("low_freq_factor", &config.low_freq_factor, 1.0, positive_finite())
      .optional("high_freq_factor", &config.high_freq_factor, 4.0, positive_finite())
      .optional("beta_fast", &config.beta_fast, 32.0, positive_finite())
      .optional("beta_slow", &config.beta_slow, 1.0, positive_finite())
      .optional("attention_factor", &config.attention_factor, positive_finite())
      .optional("mscale", &config.mscale, 0.0, at_least(0))
      .optional("mscale_all_dim", &config.mscale_all_dim, 0.0, at_least(0))
      .optional("truncate", &config.truncate, true);
}

}  // namespace

RopeConfig read_rope_parameters(ConfigFields& fields, double default_theta, int64_t head_dim, double default_part) {
  RopeConfig config;
  double partial = default_part;
  fields.alias("rope_theta", {"theta"});
  fields.optional("rope_theta", &config.theta, default_theta, positive_finite())
      .optional("partial_rotary_factor", &partial, default_part, between(1e-6, 1.0));
  ConfigFields scaling = fields.nested(fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  scaling.optional("rope_theta", &config.theta, config.theta, positive_finite())
      .optional("partial_rotary_factor", &partial, partial, between(1e-6, 1.0));
  read_scaling(fields, scaling, config);
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  fields.optional("rotary_dim", &config.rotary_dim, config.rotary_dim, positive())
      .check([&] { return config.rotary_dim % 2 == 0 && config.rotary_dim <= head_dim; },
             "the rotated part of a head must be even and at most the head");
  if (!fields.ok()) return config;
  try {
    rope_frequencies(config, head_dim);  // the kernel's own rules, told with the other problems of the file
  } catch (const Error& error) {
    fields.problem("rope_parameters", error.what());
  }
  return config;
}

}  // namespace coluber
