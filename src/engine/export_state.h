// SPDX-License-Identifier: Apache-2.0
//
// A sequence's states as plain float32 tensors in the contract's shapes, whatever order a kernel keeps them in.
#pragma once

#include <vector>

#include "coluber/session.h"
#include "engine/sequence.h"
#include "tensor/device.h"

namespace coluber {

// Names: state.<layer>.conv [1, channels, W-1], state.<layer>.recurrent [1, ...], state.<layer>.key and .value
// [1, kv_heads, T, head_size]; <layer> is the number in the layer's name. Other states of a layer are
// state.<layer>.<index>.
std::vector<ExportedState> export_states(const EngineConfig& config, Device& device, const Sequence& sequence);

}  // namespace coluber
