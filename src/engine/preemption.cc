// SPDX-License-Identifier: Apache-2.0
//
// How a sequence makes room for another and comes back: copied aside, or computed anew.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/state_cache.h"

namespace coluber {

namespace {
// A state goes out and comes back: two copies. About what one core of a server copies.
constexpr double kCopyBytesPerUs = 5000.0;
// The same of a file: a good disk, or one that is cached.
constexpr double kFileBytesPerUs = 500.0;
}  // namespace

void StateCache::count_parked(const ParkedSequence& parked, int64_t sign) noexcept {
  (parked.is_in_file() ? counters_.parked_file_bytes : counters_.parked_bytes) += sign * parked.bytes();
}

// In memory while there is room for it, else in a file where that is allowed.
std::shared_ptr<ParkedSequence> StateCache::put_aside(const Sequence& sequence, int64_t bytes, const StateTag& tag) {
  const bool fits_memory = counters_.parked_bytes + bytes <= options_.parking_bytes;
  if (!fits_memory && options_.parking_dir.empty()) return nullptr;
  if (options_.preemption == PreemptionMode::kAuto) {
    const double copies_us = 2.0 * static_cast<double>(bytes) / (fits_memory ? kCopyBytesPerUs : kFileBytesPerUs);
    if (copies_us > static_cast<double>(sequence.num_computed_tokens) * token_cost_us_) return nullptr;
  }
  // Pages that were reserved beyond the last token hold nothing.
  const auto held = static_cast<size_t>(pages_for(sequence.num_computed_tokens));
  const std::span<const int32_t> pages = std::span(sequence.pages).first(held);
  if (fits_memory)
    return ParkedSequence::park(parking_buffers_, device_, *slots_, sequence.state_slot, pages_.get(), pages, tag);
  std::string problem;
  auto parked = ParkedSequence::park_in_file(device_, *slots_, sequence.state_slot, pages_.get(), pages, tag,
                                             options_.parking_dir, problem);
  if (!parked && !std::exchange(told_of_parking_, true))
    log_warn("a sequence is computed anew instead of parked: {}", problem);
  return parked;
}

bool StateCache::park(Sequence& sequence) {
  if (options_.preemption == PreemptionMode::kRecompute || sequence.num_computed_tokens == 0) return false;
  const int64_t bytes = slots_->page_bytes() + pages_for(sequence.num_computed_tokens) * attention_layout_.page_bytes;
  tags_.expect(sequence.state_slot, tag_of(sequence));
  StateTag tag = tag_of(sequence);
  tag.checksum = checksum_of(sequence.state_slot);
  std::shared_ptr<ParkedSequence> parked = put_aside(sequence, bytes, tag);
  if (!parked) return false;
  const PrefixHash hash = sequence.prefix_hash;
  const int64_t computed = sequence.num_computed_tokens;
  release(sequence);
  sequence.prefix_hash = hash;
  sequence.lost_tokens = computed;  // where it goes on, while nothing of it is in the pools
  count_parked(*parked, 1);
  ++counters_.parked;
  if (parked->is_in_file()) ++counters_.parked_to_files;
  sequence.parked = std::move(parked);
  return true;
}

// False where there is no room now, and where what was parked cannot be had back: then nothing of it is left.
bool StateCache::unpark(Sequence& sequence) {
  const ParkedSequence& parked = *sequence.parked;
  if (!reserve(sequence, parked.num_pages() * attention_layout_.block_size)) return false;
  std::string problem;
  if (!fault(PlantedFault::kDropPark) &&
      !parked.unpark(device_, *slots_, sequence.state_slot, pages_.get(), sequence.pages, problem)) {
    if (!std::exchange(told_of_parking_, true)) log_warn("a parked sequence is computed anew: {}", problem);
    release(sequence);
    return false;
  }
  tags_.advance(sequence.state_slot, parked.tag());
  sequence.num_computed_tokens = sequence.lost_tokens;
  count_parked(parked, -1);
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
