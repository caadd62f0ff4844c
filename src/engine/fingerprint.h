// SPDX-License-Identifier: Apache-2.0
//
// Tells models apart: two engines may exchange states only where their fingerprints agree.
#pragma once

#include <string>

#include "cache/state_tag.h"
#include "coluber/model.h"

namespace coluber {

// Hash of the config's text, of every tensor's name, type and shape, and of the beginning and end of its bytes: cheap,
// and different for any two checkpoints that were trained apart.
Hash128 model_fingerprint(const std::string& config_json, const WeightSource& weights);

}  // namespace coluber
