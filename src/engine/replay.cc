// SPDX-License-Identifier: Apache-2.0
//
// Slots whose layers replay: how many inputs wait in a slot's rings, and how its states take them in. Rings are a part
// of the slot, so that whoever copies the slot has them too; states that others read are folded before.
#include <cstring>

#include "base/error.h"
#include "engine/state_cache.h"

namespace coluber {

void StateCache::find_rings(const EngineConfig& config) {
  if (!replays()) return;
  ring_length_ = config.cache.replayssm_buffer_len;
  for (const StateLayout::Layer& layer : state_layout_.layers)
    if (layer.ring_bytes > 0)
      replay_layers_.push_back(dynamic_cast<MambaBase*>(config.layers[static_cast<size_t>(layer.layer_index)]));
}

int32_t StateCache::ring_count(int32_t slot) const {
  int32_t count = 0;
  if (replays()) std::memcpy(&count, slots_->page(slot) + state_layout_.ring_count_offset, sizeof(count));
  return count;
}

void StateCache::set_ring_count(int32_t slot, int32_t count) {
  if (replays()) std::memcpy(slots_->page(slot) + state_layout_.ring_count_offset, &count, sizeof(count));
}

void StateCache::check_ring(const PlanRow& row) const {
  const int64_t count = ring_count(row.read_slot);
  COLUBER_CHECK(count >= 0 && count <= row.read_position && (count == 0 || count < ring_length_),
                "slot {} at position {} has {} inputs in rings of {}", row.read_slot, row.read_position, count,
                ring_length_);
}

void StateCache::fold_rings(const Sequence& sequence) {
  const int32_t slot = sequence.state_slot;
  const int32_t count = slot != 0 ? ring_count(slot) : 0;
  if (count == 0) return;
  COLUBER_CHECK(pool_ != nullptr, "slot {} has {} inputs in its rings before there are threads", slot, count);
  StateTag tag = tag_of(sequence);
  tag.checksum = checksum_of(slot);
  tags_.expect(slot, tag);
  tags_.clear(slot);
  for (MambaBase* layer : replay_layers_) layer->fold_replayssm(slot, count, *pool_);
  set_ring_count(slot, 0);
  tag.checksum = checksum_of(slot);
  tags_.advance(slot, tag);
}

}  // namespace coluber
