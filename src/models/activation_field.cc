// SPDX-License-Identifier: Apache-2.0
#include "models/activation_field.h"

namespace coluber {

Activation read_activation(ConfigFields& fields, std::string_view key, std::string_view fallback) {
  std::string name;
  const auto names = activation_names();
  fields.optional(key, &name, std::string(fallback), one_of({names.begin(), names.end()}));
  return parse_activation(name).value_or(Activation::kSilu);
}

}  // namespace coluber
