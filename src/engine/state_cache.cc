// SPDX-License-Identifier: Apache-2.0
#include "engine/state_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/host_memory.h"
#include "layers/cache_binding.h"

namespace coluber {

namespace {

// Addresses for attention pages: 2^44 bytes is more than any machine's memory and fits the address space.
constexpr int64_t kMaxPageRangeBytes = int64_t{1} << 44;

// Memory that a pool keeps for the next request even while it is idle.
constexpr int64_t kKeptBytes = int64_t{64} << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of no tokens. What a long sequence's first tokens leave behind must never be taken for a short one's.
PrefixHash hash_of_nothing(bool long_rope) {
  constexpr int32_t kNoToken = -1;
  PrefixHash hash;
  if (long_rope) hash.extend(std::span(&kNoToken, 1));
  return hash;
}

}  // namespace

StateCache::StateCache(const EngineConfig& config, Device& device, const StateCacheOptions& options)
    : device_(device),
      memory_bytes_(options.memory_bytes),
      tags_("states", options.num_slots + 1),
      fingerprint_(options.fingerprint),
      long_rope_beyond_(config.long_rope_beyond) {
  CacheLayouts layouts = make_cache_layouts(config);
  state_layout_ = std::move(layouts.state);
  attention_layout_ = std::move(layouts.attention);
  const int64_t slot_bytes = std::max<int64_t>(state_layout_.slot_bytes, 1);
  slots_ = std::make_unique<PagePool>(device, "states", slot_bytes, options.num_slots + 1);
  slots_->set_poison(options.poison);
  if (state_layout_.slot_bytes > 0) bind_state_layers(config, state_layout_, *slots_);
  if (attention_layout_.page_bytes > 0) {
    const int64_t most = std::min(memory_bytes_, kMaxPageRangeBytes) / attention_layout_.page_bytes;
    pages_ = std::make_unique<PagePool>(device, "attention pages", attention_layout_.page_bytes,
                                        std::clamp<int64_t>(most + 1, 2, std::numeric_limits<int32_t>::max()));
    pages_->set_poison(options.poison);
    bind_attention_layers(config, attention_layout_, *pages_);
  }
  if (!can_ever_hold(1))
    throw make_error(ErrorCode::kOutOfMemory,
                     "one sequence needs {} of state cache and only {} may be used; allow more memory for the cache",
                     format_bytes(bytes_for(1)), format_bytes(memory_bytes_));
}

int64_t StateCache::pages_for(int64_t num_tokens) const {
  return pages_ ? ceil_div(num_tokens, attention_layout_.block_size) : 0;
}

int64_t StateCache::bytes_for(int64_t num_tokens) const {
  return state_layout_.slot_bytes + pages_for(num_tokens) * attention_layout_.page_bytes;
}

bool StateCache::can_ever_hold(int64_t num_tokens) const {
  return bytes_for(num_tokens) <= memory_bytes_ && (!pages_ || pages_for(num_tokens) < pages_->max_pages());
}

bool StateCache::fits(int64_t more_bytes) const {
  const int64_t used =
      slots_->num_used() * state_layout_.slot_bytes + (pages_ ? pages_->num_used() * attention_layout_.page_bytes : 0);
  return more_bytes <= memory_bytes_ - used;
}

bool StateCache::reserve(Sequence& sequence, int64_t num_tokens) {
  const bool needs_slot = sequence.state_slot == 0;
  const int64_t more_pages = std::max<int64_t>(pages_for(num_tokens) - static_cast<int64_t>(sequence.pages.size()), 0);
  if (needs_slot && slots_->num_free() == 0) return false;
  if (more_pages > 0 && pages_->num_free() < more_pages) return false;
  if (!fits((needs_slot ? state_layout_.slot_bytes : 0) + more_pages * attention_layout_.page_bytes)) return false;
  const size_t pages_before = sequence.pages.size();
  try {
    if (needs_slot) {
      sequence.state_slot = *slots_->allocate();
      tags_.clear(sequence.state_slot);
    }
    for (int64_t i = 0; i < more_pages; ++i) sequence.pages.push_back(*pages_->allocate());
  } catch (const Error& error) {  // the system has less memory than the budget says
    log_warn("no memory for {} more tokens: {}", num_tokens, error.what());
    for (size_t i = pages_before; i < sequence.pages.size(); ++i) pages_->release(sequence.pages[i]);
    sequence.pages.resize(pages_before);
    if (needs_slot && sequence.state_slot != 0) release_slot(std::exchange(sequence.state_slot, 0));
    return false;
  }
  return true;
}

void StateCache::follow_length(Sequence& sequence) {
  const bool is_long = long_rope_beyond_ > 0 && sequence.num_tokens() > long_rope_beyond_;
  if (is_long == sequence.long_rope) return;
  const bool was_computed = sequence.num_computed_tokens > 0;
  sequence.long_rope = is_long;
  sequence.num_computed_tokens = 0;
  sequence.prefix_hash = hash_of_nothing(is_long);
  if (!was_computed) return;
  tags_.clear(sequence.state_slot);
  sequence.num_prompt_tokens = sequence.num_tokens();
}

void StateCache::release(Sequence& sequence) {
  for (int32_t page : sequence.pages) pages_->release(page);
  sequence.pages.clear();
  if (sequence.state_slot != 0) release_slot(sequence.state_slot);
  sequence.state_slot = 0;
  sequence.num_computed_tokens = 0;
  sequence.prefix_hash = hash_of_nothing(sequence.long_rope);
  give_back(*slots_);
  if (pages_) give_back(*pages_);
}

// Memory goes back where most of a large pool lies idle: often enough to matter, and not after every request.
void StateCache::give_back(PagePool& pool) {
  if (pool.mapped_bytes() > kKeptBytes && pool.num_used() * pool.page_bytes() < pool.mapped_bytes() / 4) pool.trim();
}

void StateCache::release_slot(int32_t slot) {
  tags_.clear(slot);
  slots_->release(slot);
}

int32_t StateCache::copy_to_new_slot(const Sequence& sequence) {
  if (slots_->num_free() == 0 || !fits(state_layout_.slot_bytes)) return 0;
  tags_.expect(sequence.state_slot, tag_of(sequence));
  const int32_t slot = *slots_->allocate();
  device_.copy(slots_->page(slot), slots_->page(sequence.state_slot), state_layout_.slot_bytes);
  tags_.advance(slot, tag_of(sequence));
  return slot;
}

void StateCache::copy_back(int32_t from_slot, Sequence& sequence) {
  COLUBER_CHECK(tags_.at(from_slot).written, "slot {} holds no state", from_slot);
  COLUBER_CHECK(sequence.state_slot != 0, "the sequence has no slot");
  device_.copy(slots_->page(sequence.state_slot), slots_->page(from_slot), state_layout_.slot_bytes);
  tags_.advance(sequence.state_slot, tags_.at(from_slot));
}

void StateCache::scrub(Sequence& sequence) {
  if (sequence.state_slot == 0) return;
  device_.fill(slots_->page(sequence.state_slot), std::byte{0}, state_layout_.slot_bytes);
  tags_.clear(sequence.state_slot);
}

int64_t StateCache::attention_slot(const Sequence& sequence, int64_t position) const {
  if (!pages_) return kPadSlotId;
  const int64_t block_size = attention_layout_.block_size;
  return int64_t{sequence.pages[static_cast<size_t>(position / block_size)]} * block_size + position % block_size;
}

StateTag StateCache::tag_of(const Sequence& sequence) const {
  StateTag tag;
  tag.model = fingerprint_;
  tag.layout_id = state_layout_.id;
  tag.position = sequence.num_computed_tokens;
  tag.prefix = sequence.prefix_hash.value();
  tag.written = true;
  return tag;
}

void StateCache::check_read(const PlanRow& row) const {
  COLUBER_CHECK(row.write_slot != 0 && slots_->in_use(row.write_slot), "slot {} is not owned by the row's sequence",
                row.write_slot);
  COLUBER_CHECK(row.read_position == row.sequence->num_computed_tokens,
                "the plan reads position {} and the sequence is at {}", row.read_position,
                row.sequence->num_computed_tokens);
  if (row.read_position > 0) tags_.expect(row.read_slot, tag_of(*row.sequence));
}

void StateCache::begin_write(const PlanRow& row) { tags_.clear(row.write_slot); }

void StateCache::end_write(const PlanRow& row) {
  Sequence& sequence = *row.sequence;
  const auto first = static_cast<size_t>(row.read_position);
  sequence.prefix_hash.extend(std::span(sequence.tokens).subspan(first, static_cast<size_t>(row.num_tokens)));
  sequence.num_computed_tokens = row.write_position;
  tags_.advance(row.write_slot, tag_of(sequence));
}

int64_t StateCache::free_slots() const noexcept { return slots_->num_free(); }
int64_t StateCache::free_pages() const noexcept { return pages_ ? pages_->num_free() : 0; }
int64_t StateCache::mapped_bytes() const noexcept {
  return slots_->mapped_bytes() + (pages_ ? pages_->mapped_bytes() : 0);
}

}  // namespace coluber
