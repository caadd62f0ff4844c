// SPDX-License-Identifier: Apache-2.0
#include "models/rope_parameters.h"

#include <algorithm>

namespace coluber {

namespace {

// How long the model was trained. As in transformers the model's own field wins over the scaling's.
void read_trained_length(ConfigFields& fields, ConfigFields& rope, int64_t longest, RopeConfig& config) {
  int64_t& length = config.original_max_position_embeddings;
  rope.optional("original_max_position_embeddings", &length, longest, at_least(0));
  fields.optional("original_max_position_embeddings", &length, length, at_least(0));
}

// The factor of a kind that has one by itself: how far the model goes beyond what it was trained for.
void read_factor_or_ratio(ConfigFields& rope, int64_t longest, RopeConfig& config) {
  const int64_t trained = config.original_max_position_embeddings;
  const double ratio = trained > 0 ? static_cast<double>(longest) / static_cast<double>(trained) : 1.0;
  rope.optional("factor", &config.factor, std::max(ratio, 1.0), positive_finite());
}

// As in transformers the older spelling wins where both stand, unless it is empty.
ConfigFields scaling_of(ConfigFields& fields) {
  const Json* older = fields.find("rope_scaling");
  const bool wins = older != nullptr && !(older->is_object() && older->as_object().empty());
  return fields.nested(wins ? "rope_scaling" : "rope_parameters");
}

void read_scaling(ConfigFields& fields, ConfigFields& rope, RopeConfig& config) {
  std::string type;
  rope.alias("rope_type", {"type"});
  rope.optional("rope_type", &type, "default",
                one_of({"default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"}));
  // "dynamic" turns faster only beyond max_position_embeddings, and no sequence gets there.
  config.type = parse_rope_type(type).value_or(RopeType::kDefault);
  if (config.type == RopeType::kDefault) return;
  int64_t longest = 0;
  fields.optional("max_position_embeddings", &longest, 0, at_least(0));
  read_trained_length(fields, rope, longest, config);
  if (config.type == RopeType::kLongRope) {
    rope.required("short_factor", &config.divisors, positive_finite())
        .required("long_factor", &config.long_divisors, positive_finite());
    read_factor_or_ratio(rope, longest, config);
    config.factor = std::max(config.factor, 1.0);
  } else if (config.type == RopeType::kYarn) {
    read_factor_or_ratio(rope, longest, config);
  } else if (config.type == RopeType::kProportional) {
    rope.optional("factor", &config.factor, 1.0, positive_finite());
  } else {
    rope.required("factor", &config.factor, positive_finite());
  }
  rope.optional("low_freq_factor", &config.low_freq_factor, 1.0, positive_finite())
      .optional("high_freq_factor", &config.high_freq_factor, 4.0, positive_finite())
      .optional("beta_fast", &config.beta_fast, 32.0, positive_finite())
      .optional("beta_slow", &config.beta_slow, 1.0, positive_finite())
      .optional("attention_factor", &config.attention_factor, positive_finite())
      .optional("mscale", &config.mscale, 0.0, at_least(0))
      .optional("mscale_all_dim", &config.mscale_all_dim, 0.0, at_least(0))
      .optional("truncate", &config.truncate, true);
}

}  // namespace

bool rope_theta_is_null(ConfigFields& fields) {
  const ConfigFields scaling = scaling_of(fields);
  return scaling.is_null("rope_theta") || (!scaling.has("rope_theta") && fields.is_null("rope_theta"));
}

RopeConfig read_rope_parameters(ConfigFields& fields, double default_theta, int64_t head_dim, double default_part) {
  RopeConfig config;
  double partial = default_part;
  fields.alias("rope_theta", {"theta"});
  fields.optional("rope_theta", &config.theta, default_theta, positive_finite())
      .optional("partial_rotary_factor", &partial, default_part, between(1e-6, 1.0));
  ConfigFields scaling = scaling_of(fields);
  scaling.optional("rope_theta", &config.theta, config.theta, positive_finite())
      .optional("partial_rotary_factor", &partial, partial, between(1e-6, 1.0));
  read_scaling(fields, scaling, config);
  if (config.type == RopeType::kProportional) {
    config.proportion = partial;
    partial = 1.0;
  }
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
