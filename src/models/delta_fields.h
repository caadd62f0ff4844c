// SPDX-License-Identifier: Apache-2.0
//
// The fields of Gated DeltaNet layers that the hybrids with them share (linear_num_key_heads, ...), and the kinds of
// their layers. Each family reads its own fields beside them. Pure functions; problems go to the fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/hf_config.h"
#include "layers/gated_delta_net.h"

namespace coluber {

// The linear_* fields, with `defaults` where they are absent: heads, head dims and the convolution's width.
GatedDeltaNetConfig read_delta_fields(ConfigFields& fields, const GatedDeltaNetConfig& defaults);

// Bounds on a layer's widths that hold for every family; `names` says what the file calls them.
void check_delta_widths(ConfigFields& fields, const GatedDeltaNetConfig& config, const std::string& names);

// layer_types, or one "full_attention" every full_attention_interval (4) layers.
std::vector<std::string> read_delta_layer_types(ConfigFields& fields, int64_t num_layers);

}  // namespace coluber
