// SPDX-License-Identifier: Apache-2.0
//
// The shared-page layout: attention pages and pages of states are of one size and come from one pool of blocks, as in
// engines that know one size only (kv_cache_groups.h has their rules). A block holds one page of each layer of a group;
// all attention layers are one group, recurrent layers are cut into groups of as many. A sequence's states take one
// block a group, neighbours in the pool, so that they stay one range. Plain values and pure functions; throw
// Error(kInvalidConfig) with the numbers where a model's layers cannot be so.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/kv_cache_groups.h"

namespace coluber {

// Tokens of a block and bytes of a page for these layers. `rules` says everything but the bytes.
UnifiedPageSize unify_layers(const std::vector<LayerStateSpec>& states,
                             const std::vector<LayerAttentionSpec>& attention, UnifyPageSizeInput rules);

struct SharedLayout {
  StateLayout state;
  AttentionLayout attention;
  int64_t blocks_per_slot = 0;  // groups of recurrent layers; 0: there are none
};
// Of specs whose pages are equal.
SharedLayout make_shared_layout(const std::vector<LayerStateSpec>& states,
                                const std::vector<LayerAttentionSpec>& attention);

}  // namespace coluber
