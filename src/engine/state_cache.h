// SPDX-License-Identifier: Apache-2.0
//
// The memory of sequences: one recurrent slot each (all layers' states in one contiguous range) and attention pages,
// from elastic pools; and the tags that prove what a slot holds. Binds the layers to the pools. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/page_pool.h"
#include "cache/state_tag.h"
#include "coluber/config.h"
#include "engine/step_plan.h"
#include "tensor/device.h"

namespace coluber {

struct StateCacheOptions {
  int64_t num_slots = 0;     // sequences and checkpoints that may exist at once
  int64_t memory_bytes = 0;  // budget of slots and pages together
  bool poison = false;       // tests: pages are filled with NaN when handed out
  Hash128 fingerprint;
};

class StateCache {
 public:
  // Lays the layers' states out and binds the layers. Throws Error(kOutOfMemory) with the sizes where one sequence does
  // not fit.
  StateCache(const EngineConfig& config, Device& device, const StateCacheOptions& options);

  Device& device() const noexcept { return device_; }
  const StateLayout& state_layout() const noexcept { return state_layout_; }

  // Gives the sequence a slot and pages for `num_tokens` tokens in all. False, with nothing changed, where they cannot
  // be had now.
  bool reserve(Sequence& sequence, int64_t num_tokens);
  // To be called where a sequence's tokens have changed. One that has become long (EngineConfig::long_rope_beyond), or is
  // so no more, must be computed from its first token: its positions turn otherwise.
  void follow_length(Sequence& sequence);
  // Gives everything back; the sequence must be computed anew.
  void release(Sequence& sequence);
  // Whether a sequence of that length could ever be reserved in an empty cache, and the bytes it needs.
  bool can_ever_hold(int64_t num_tokens) const;
  int64_t bytes_for(int64_t num_tokens) const;
  int64_t memory_bytes() const noexcept { return memory_bytes_; }

  // A copy of the sequence's states in a slot of its own; 0 where no slot can be had. Tagged like the source.
  int32_t copy_to_new_slot(const Sequence& sequence);
  // Puts a copy made before back into the sequence's slot.
  void copy_back(int32_t from_slot, Sequence& sequence);
  void release_slot(int32_t slot);
  // Writes over the slot's bytes: nothing of it can be read again.
  void scrub(Sequence& sequence);

  int64_t attention_slot(const Sequence& sequence, int64_t position) const;

  // The three moments of a row: the tag must be what the plan expects; the slot is void; the slot holds the new
  // position.
  void check_read(const PlanRow& row) const;
  void begin_write(const PlanRow& row);
  void end_write(const PlanRow& row);

  int64_t free_slots() const noexcept;
  int64_t free_pages() const noexcept;
  int64_t mapped_bytes() const noexcept;

 private:
  int64_t pages_for(int64_t num_tokens) const;
  static void give_back(PagePool& pool);
  StateTag tag_of(const Sequence& sequence) const;  // of a state that holds the sequence's computed tokens
  // Another slot or so many pages under the budget, or nothing.
  bool fits(int64_t more_bytes) const;

  Device& device_;
  int64_t memory_bytes_;
  StateLayout state_layout_;
  AttentionLayout attention_layout_;
  std::unique_ptr<PagePool>
      slots_;  // a model without recurrent layers has slots of one byte: tags and ids stay the same
  std::unique_ptr<PagePool> pages_;  // null without attention layers
  StateTagTable tags_;
  Hash128 fingerprint_;
  int64_t long_rope_beyond_;
};

}  // namespace coluber
