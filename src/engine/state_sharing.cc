// SPDX-License-Identifier: Apache-2.0
//
// What sessions ask of the state cache: forks and checkpoints that share attention pages, and bytes for files.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/state_cache.h"

namespace coluber {

bool StateCache::share(const Sequence& from, Sequence& to) {
  COLUBER_CHECK(from.state_slot != 0 && &from != &to, "a sequence without states is shared");
  tags_.expect(from.state_slot, tag_of(from));
  const bool keeps_later = fault(PlantedFault::kKeepLaterState) && to.state_slot != 0;
  if (to.state_slot == 0) {
    if (!take_slot(to)) return false;
  }
  tags_.clear(to.state_slot);
  if (!keeps_later) device_.copy(slots_->page(to.state_slot), slots_->page(from.state_slot), state_layout_.slot_bytes);
  // Pages beyond the last token hold nothing yet.
  std::vector<int32_t> pages(from.pages.begin(), from.pages.begin() + pages_for(from.num_computed_tokens));
  for (const int32_t page : pages) pages_->retain(page);
  for (const int32_t page : to.pages) pages_->release(page);
  const int32_t slot = to.state_slot;
  to = from;
  to.state_slot = slot;
  to.pages = std::move(pages);
  tags_.advance(slot, tag_of(to));
  return true;
}

bool StateCache::unshare(Sequence& sequence) {
  if (!pages_) return true;
  const auto first = static_cast<size_t>(sequence.num_computed_tokens / attention_layout_.block_size);
  const bool is_begun = sequence.num_computed_tokens % attention_layout_.block_size != 0;
  std::vector<std::pair<size_t, int32_t>> own;
  for (size_t i = first; i < sequence.pages.size(); ++i) {
    if (pages_->ref_count(sequence.pages[i]) == 1) continue;
    if (fault(PlantedFault::kForkSharesPage)) continue;
    const std::optional<int32_t> page = take(*pages_);
    if (!page) {
      for (const auto& [place, taken] : own) pages_->release(taken);
      return false;
    }
    own.emplace_back(i, *page);
  }
  for (const auto& [place, page] : own) {
    const int32_t shared = std::exchange(sequence.pages[place], page);
    if (place == first && is_begun)
      device_.copy(pages_->page(page), pages_->page(shared), attention_layout_.page_bytes);
    pages_->release(shared);
  }
  return true;
}

void StateCache::become_request(Sequence& sequence, int64_t request_id) {
  sequence.request_id = request_id;
  sequence.is_private = sequence.num_tokens() > 0;
  sequence.prefix.hit_tokens = sequence.prefix.common_tokens = sequence.num_computed_tokens;
  if (sequence.state_slot != 0) ++request_slots_;
}

void StateCache::become_session(Sequence& sequence) {
  if (sequence.state_slot == 0) release(sequence);
  if (leaves_its_end(sequence)) publish(sequence, Hand::kCopy);
  drop_inner_states(sequence);
  stand_at(sequence, -1);
  std::erase(prefilling_, &sequence);
  if (sequence.state_slot != 0) --request_slots_;
  sequence.request_id = 0;
  sequence.prefix = {};
  sequence.num_starts = sequence.lost_tokens = 0;
}

SessionBytes StateCache::saved_bytes(const Sequence& sequence) const {
  tags_.expect(sequence.state_slot, tag_of(sequence));
  COLUBER_CHECK(ring_count(sequence.state_slot) == 0, "states are saved without {} inputs that are in their rings",
                ring_count(sequence.state_slot));
  SessionBytes bytes;
  const auto add = [&](const std::byte* piece, int64_t size) -> std::span<const std::byte> {
    if (device_.is_host()) return {piece, static_cast<size_t>(size)};
    auto copy = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(size));
    device_.copy(copy->data(), piece, size);
    bytes.owners.push_back(copy);
    return *copy;
  };
  bytes.states = add(slots_->page(sequence.state_slot), state_layout_.state_bytes);
  for (int64_t i = 0; i < pages_for(sequence.num_computed_tokens); ++i)
    bytes.pages.push_back(add(pages_->page(sequence.pages[static_cast<size_t>(i)]), attention_layout_.page_bytes));
  if (fault(PlantedFault::kSaveWithoutConv)) {
    auto without = std::make_shared<std::vector<std::byte>>(bytes.states.begin(), bytes.states.end());
    for (const StateLayout::Layer& layer : state_layout_.layers) {
      const auto first = without->begin() + layer.offset + layer.state_offsets[0];
      const int64_t end = layer.state_offsets.size() > 1 ? layer.state_offsets[1] : layer.page_bytes;
      std::fill(first, first + (end - layer.state_offsets[0]), std::byte{0});
    }
    bytes.states = *without;
    bytes.owners.push_back(std::move(without));
  }
  return bytes;
}

void StateCache::restore(Sequence& sequence, const SessionBytes& bytes) {
  COLUBER_CHECK(std::ssize(bytes.states) == state_layout_.state_bytes, "{} bytes of states for a slot of {}",
                bytes.states.size(), state_layout_.state_bytes);
  COLUBER_CHECK(std::ssize(bytes.pages) == pages_for(sequence.num_computed_tokens) &&
                    bytes.pages.size() <= sequence.pages.size() && sequence.state_slot != 0,
                "{} saved pages for {} tokens in {} pages", bytes.pages.size(), sequence.num_computed_tokens,
                sequence.pages.size());
  tags_.clear(sequence.state_slot);
  device_.copy(slots_->page(sequence.state_slot), bytes.states.data(), state_layout_.state_bytes);
  set_ring_count(sequence.state_slot, 0);
  for (size_t i = 0; i < bytes.pages.size(); ++i)
    device_.copy(pages_->page(sequence.pages[i]), bytes.pages[i].data(), attention_layout_.page_bytes);
  if (fault(PlantedFault::kRestoreOffByOne)) --sequence.num_computed_tokens;
  sequence.prefix_hash = hash_of_nothing(sequence.long_rope);
  sequence.prefix_hash.extend(std::span(sequence.tokens).first(static_cast<size_t>(sequence.num_computed_tokens)));
  tags_.advance(sequence.state_slot, tag_of(sequence));
}

}  // namespace coluber
