// SPDX-License-Identifier: Apache-2.0
//
// Which registered family a config.json belongs to: by `model_type`, else by the first of `architectures` that is
// known.
#pragma once

#include <string>

#include "base/json.h"
#include "coluber/registry.h"

namespace coluber {

// Throws Error(kUnsupported) with what `path` names and the list of the known families.
const ModelFamily& find_family(const Json& config, const std::string& path);

// Throws Error(kUnsupported) where the config says that the weights are quantised: read as plain numbers they would be
// wrong.
void check_not_quantized(const Json& config, const std::string& path);

}  // namespace coluber
