// SPDX-License-Identifier: Apache-2.0
//
// Reads which activation function a config names. A word that no kernel knows is a problem of the file. A pure
// function.
#pragma once

#include <string_view>

#include "formats/hf_config.h"
#include "kernels/moe/activation.h"

namespace coluber {

Activation read_activation(ConfigFields& fields, std::string_view key, std::string_view fallback);

}  // namespace coluber
