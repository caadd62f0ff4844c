// SPDX-License-Identifier: Apache-2.0
//
// A model that computes nothing, so that all that a step takes is the engine's own: a recurrent layer with states of a
// given size, an attention layer, a small vocabulary.
#pragma once

#include <cstdint>
#include <memory>

#include "coluber/engine.h"

namespace coluber {

// `state_bytes` and `kv_bytes_per_token` are multiples of 4; 0: no such layer.
std::unique_ptr<Engine> make_costless_engine(const EngineOptions& options, int64_t state_bytes,
                                             int64_t kv_bytes_per_token);

}  // namespace coluber
