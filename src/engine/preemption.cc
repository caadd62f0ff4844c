// SPDX-License-Identifier: Apache-2.0
//
// How a sequence makes room for another and comes back: copied aside, or computed anew.
#include "base/error.h"
#include "engine/state_cache.h"

namespace coluber {

namespace {
// A state goes out and comes back: two copies. About what one core of a server copies.
constexpr double kCopyBytesPerUs = 5000.0;
}  // namespace

bool StateCache::park(Sequence& sequence) {
  if (options_.preemption == PreemptionMode::kRecompute || sequence.num_computed_tokens == 0) return false;
  const int64_t held_pages = pages_for(sequence.num_computed_tokens);
  const int64_t bytes = slots_->page_bytes() + held_pages * attention_layout_.page_bytes;
  if (options_.preemption == PreemptionMode::kAuto) {
    const double copies_us = 2.0 * static_cast<double>(bytes) / kCopyBytesPerUs;
    if (copies_us > static_cast<double>(sequence.num_computed_tokens) * token_cost_us_) return false;
  }
  if (counters_.parked_bytes + bytes > options_.parking_bytes) return false;
  tags_.expect(sequence.state_slot, tag_of(sequence));
  StateTag tag = tag_of(sequence);
  tag.checksum = checksum_of(sequence.state_slot);
  // Pages that were reserved beyond the last token hold nothing.
  const std::span<const int32_t> pages = std::span(sequence.pages).first(static_cast<size_t>(held_pages));
  std::shared_ptr<ParkedSequence> parked =
      ParkedSequence::park(parking_buffers_, device_, *slots_, sequence.state_slot, pages_.get(), pages, tag);
  if (!parked) return false;
  const PrefixHash hash = sequence.prefix_hash;
  const int64_t computed = sequence.num_computed_tokens;
  release(sequence);
  sequence.prefix_hash = hash;
  sequence.lost_tokens = computed;  // where it goes on, while nothing of it is in the pools
  sequence.parked = std::move(parked);
  counters_.parked_bytes += bytes;
  ++counters_.parked;
  return true;
}

bool StateCache::unpark(Sequence& sequence) {
  const ParkedSequence& parked = *sequence.parked;
  if (!reserve(sequence, parked.num_pages() * attention_layout_.block_size)) return false;
  if (!fault(PlantedFault::kDropPark))
    parked.unpark(device_, *slots_, sequence.state_slot, pages_.get(), sequence.pages);
  tags_.advance(sequence.state_slot, parked.tag());
  sequence.num_computed_tokens = sequence.lost_tokens;
  counters_.parked_bytes -= parked.bytes();
  sequence.parked.reset();
  ++sequence.num_starts;
  return true;
}

void StateCache::preempt(Sequence& sequence) {
  ++counters_.preemptions;
  if (park(sequence)) return;
  sequence.lost_tokens = sequence.num_computed_tokens;
  if (fault(PlantedFault::kLeakSlot)) sequence.state_slot = 0;
  finish(sequence);  // what it computed may be found again, if nobody needs the room
}

}  // namespace coluber
