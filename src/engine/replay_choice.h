// SPDX-License-Identifier: Apache-2.0
//
// Whether a model's layers replay their steps (kernels/scan/ssd_replay.h): what the user asked for, checked, or where
// that is faster. Pure functions over options and configuration; nothing is kept.
#pragma once

#include <string>
#include <vector>

#include "coluber/config.h"
#include "coluber/engine.h"

namespace coluber {

// What is wrong with the options, whatever the model.
std::vector<std::string> replay_problems(const EngineOptions& options);

// Sets CacheConfig::use_replayssm once the layers are there. Throws Error(kInvalidConfig) where replay was asked for
// and the model cannot.
void choose_replay(const EngineOptions& options, EngineConfig& config);

}  // namespace coluber
