// SPDX-License-Identifier: Apache-2.0
//
// Which registered family a checkpoint belongs to: by config.json's `model_type`, else by the first of `architectures`
// that is known, else by what a family recognises in the tensors.
#pragma once

#include <string>

#include "base/json.h"
#include "coluber/registry.h"

namespace coluber {

// Throws Error(kUnsupported) with what `path` names and the list of the known families.
const ModelFamily& find_family(const Json& config, const std::string& path);
// The same, where the tensors may tell. `config_json` is empty where there is no config.json: then `path` is that of
// the weights, and Error(kNotFound) says which families do without.
const ModelFamily& find_family(const std::string& config_json, const std::string& path, const WeightSource& weights);
// By the config alone; null where it names no family that is known.
const ModelFamily* find_named_family(const Json& config) noexcept;

}  // namespace coluber
