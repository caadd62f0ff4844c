// SPDX-License-Identifier: Apache-2.0
//
// Which arrays of a backend's metadata layers may hand to a device, so that a step's work can be recorded once and done
// again with other values at the same places.
#pragma once

#include <vector>

#include "coluber/attention_metadata.h"
#include "tensor/cuda_step.h"

namespace coluber {

// Whether the metadata of such layers can be listed: that of every backend of ours. A custom one may read on the host
// what differs from step to step.
bool can_list_arrays(const KVCacheSpec& spec) noexcept;
// Appends the arrays that the metadata owns, always as many and in the same order; those of attention are the batch's
// own. In a step of one token a row, each with tokens before it, their sizes say all that layers read on the host.
void list_arrays(const AttentionMetadata& metadata, std::vector<HostArray>& arrays);

}  // namespace coluber
