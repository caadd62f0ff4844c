// SPDX-License-Identifier: Apache-2.0
//
// What states and attention pages are kept in (docs/numerics.md): the user's choice, checked, or the config's. Pure
// functions over options and configuration; nothing is kept.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "coluber/config.h"
#include "coluber/engine.h"

namespace coluber {

// What is wrong with the options, whatever the model.
std::vector<std::string> cache_dtype_problems(const EngineOptions& options);

// Where the options leave it open, recurrent states are what config.json says (mamba_ssm_cache_dtype or
// mamba_ssm_dtype, there or in its text_config); deterministic engines keep float32, which is no less. Throws
// Error(kInvalidConfig), naming `path`, where it says something that states cannot be.
void take_state_dtype_of_config(const EngineOptions& options, const Json& config, const std::string& path,
                                CacheConfig& cache);

// Once the layers are there. Throws Error(kInvalidConfig) where states of whole numbers were asked for and no layer has
// one.
void check_has_scaled_states(const EngineConfig& config);

}  // namespace coluber
