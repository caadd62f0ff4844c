// SPDX-License-Identifier: Apache-2.0
#include "models/activation_field.h"

namespace coluber {

Activation read_activation(ConfigFields& fields, std::string_view key, std::string_view fallback) {
  std::string name;
  fields.optional(key, &name, std::string(fallback),
                  one_of({"silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2", "sigmoid"}));
  return parse_activation(name).value_or(Activation::kSilu);
}

}  // namespace coluber
