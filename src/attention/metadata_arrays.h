// SPDX-License-Identifier: Apache-2.0
//
// Which arrays of a backend's metadata layers may hand to a device, so that a step's work can be recorded once and done
// again with other values at the same places.
#pragma once

#include <vector>

#include "coluber/attention_metadata.h"
#include "tensor/cuda_step.h"

namespace coluber {

// Whether the metadata of such layers can be listed: mamba1, mamba2 and short conv. Others also read sizes and
// positions on the host, which differ from step to step.
bool can_list_arrays(const KVCacheSpec& spec) noexcept;
// Appends the arrays, always as many and in the same order.
void list_arrays(const BaseMambaAttentionMetadata& metadata, std::vector<HostArray>& arrays);

}  // namespace coluber
