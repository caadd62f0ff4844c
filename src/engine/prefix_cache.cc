// SPDX-License-Identifier: Apache-2.0
//
// Requests and the prefix tree: what a new sequence takes over from earlier ones, and what it leaves for later ones.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cache/finite.h"
#include "engine/state_cache.h"

namespace coluber {

namespace {
// Of the budget, that one prompt's checkpoints may take.
constexpr int64_t kBudgetPart = 4;
constexpr int64_t kMostCheckpoints = 64;
// Shared blocks from which on it is quicker to wait for another prompt's states than to compute them too.
constexpr int64_t kBlocksWorthWaiting = 4;
}  // namespace

// Tenants are apart by their salts; long sequences, whose positions turn otherwise, from short ones.
std::string StateCache::root_name(const Sequence& sequence) const {
  return (sequence.long_rope ? "long/" : "/") + (fault(PlantedFault::kForgetSalt) ? "" : sequence.cache_salt);
}

void StateCache::stand_at(Sequence& sequence, int32_t node) {
  if (node >= 0) tree_->lock(node);
  if (sequence.place.node >= 0 && !(fault(PlantedFault::kLeakLock) && node < 0)) tree_->unlock(sequence.place.node);
  sequence.place.node = node;
}

// ---- taking over -----------------------------------------------------------------------------------------------

bool StateCache::adopt_states(Sequence& sequence, const PrefixMatch& match) {
  sequence.prefix_hash = hash_of_nothing(sequence.long_rope);
  sequence.prefix_hash.extend(std::span(sequence.tokens).first(static_cast<size_t>(match.position)));
  sequence.num_computed_tokens = match.position;
  if (match.checkpoint == PrefixTree::kNone) {
    tags_.advance(sequence.state_slot, tag_of(sequence));
    return true;
  }
  const int32_t from = tree_->checkpoint(match.checkpoint).slot;
  StateTag expected = tag_of(sequence);
  expected.checksum = checksum_of(from);
  try {
    tags_.expect(from, expected);
  } catch (const Error& error) {
    if (++counters_.broken_states == 1)
      log_warn("a cached state is dropped, its prefix is computed anew: {}", error.what());
    return false;
  }
  if (!fault(PlantedFault::kForkWithoutStates))
    device_.copy(slots_->page(sequence.state_slot), slots_->page(from), state_layout_.slot_bytes);
  StateTag tag = tag_of(sequence);
  tag.checksum = expected.checksum;
  tags_.advance(sequence.state_slot, tag);
  return true;
}

// The begun block of a hit becomes the sequence's own: it goes on in it.
bool StateCache::adopt_tail(Sequence& sequence, const PrefixCheckpoint& checkpoint) {
  if (checkpoint.tail_page == 0) return true;
  const std::optional<int32_t> page = take(*pages_);
  if (!page) return false;
  device_.copy(pages_->page(*page), pages_->page(checkpoint.tail_page), attention_layout_.page_bytes);
  sequence.pages.push_back(*page);
  return true;
}

// Takes the hit over. False, with the sequence at its beginning, where its state is not what it should be (the
// checkpoint is then dropped) or its begun block cannot be copied now.
bool StateCache::adopt(Sequence& sequence, const PrefixMatch& match) {
  for (const int32_t page : sequence.pages) pages_->retain(page);
  if (fault(PlantedFault::kLeakPageReference) && !sequence.pages.empty()) pages_->retain(sequence.pages.back());
  stand_at(sequence, match.node);
  bool adopted = true;
  if (match.checkpoint != PrefixTree::kNone) tree_->pin(match.checkpoint);
  if (match.checkpoint != PrefixTree::kNone) adopted = adopt_tail(sequence, tree_->checkpoint(match.checkpoint));
  const bool sound = match.position == 0 || adopt_states(sequence, match);
  if (match.checkpoint != PrefixTree::kNone) tree_->unpin(match.checkpoint);
  if (!sound) tree_->drop_checkpoint(match.checkpoint);
  if (adopted && sound) return true;
  for (const int32_t page : sequence.pages) pages_->release(page);
  sequence.pages.clear();
  stand_at(sequence, PrefixTree::kNone);
  tags_.clear(sequence.state_slot);
  sequence.num_computed_tokens = 0;
  sequence.prefix_hash = hash_of_nothing(sequence.long_rope);
  return false;
}

bool StateCache::find_prefix(Sequence& sequence) {
  for (;;) {
    sequence.pages.clear();
    const PrefixMatch match = tree_->match(sequence.tokens, root_name(sequence), sequence.pages);
    const int64_t broken = counters_.broken_states;
    if (fault(PlantedFault::kWrongBlockSize) && sequence.pages.size() > 1) sequence.pages.pop_back();
    if (fault(PlantedFault::kStaleHit) && sequence.pages.size() > 1) sequence.pages.back() = sequence.pages.front();
    if (adopt(sequence, match)) {
      if (sequence.num_starts == 0) {
        sequence.prefix.hit_tokens = match.position;
        sequence.prefix.common_tokens = match.common;
        sequence.prefix.reason = match.reason;
      }
      sequence.checked_tokens = match.position;
      return true;
    }
    if (counters_.broken_states == broken) return false;
  }
}

PromptFacts StateCache::facts_of(const Sequence& sequence) const {
  PromptFacts facts;
  facts.prompt_tokens = sequence.num_prompt_tokens;
  facts.hit_tokens = sequence.prefix.hit_tokens;
  facts.common_tokens = sequence.prefix.common_tokens;
  facts.max_checkpoints = std::clamp<int64_t>(
      memory_bytes_ / kBudgetPart / std::max<int64_t>(state_layout_.slot_bytes, 1), 2, kMostCheckpoints);
  return facts;
}

void StateCache::plan_checkpoints_of(Sequence& sequence) const {
  PromptFacts facts = facts_of(sequence);
  facts.hit_tokens = sequence.num_computed_tokens;
  plan_checkpoints(options_.policy, facts, sequence.prefix.checkpoints);
}

void StateCache::count_start(Sequence& sequence) {
  if (++sequence.num_starts > 1) {
    counters_.recomputed_tokens += std::max<int64_t>(sequence.lost_tokens - sequence.num_computed_tokens, 0);
    return;
  }
  counters_.query_tokens += sequence.num_prompt_tokens;
  counters_.hit_tokens += sequence.prefix.hit_tokens;
  ++counters_.miss_reasons[static_cast<size_t>(sequence.prefix.reason)];
  // The operator may know; a tenant may not, for it says what another one asked.
  if (sequence.prefix.reason == MissReason::kDifferentAdapterOrSalt && !options_.tell_other_salts)
    sequence.prefix.reason = MissReason::kNoCommonPrefix;
}

// Prompts that arrive together and begin alike: the first computes what they share and leaves a state where they part.
bool StateCache::waits_for_another(const Sequence& sequence) {
  if (!options_.wait_for_prefixes || options_.policy.mode != MambaCacheMode::kAuto || !tree_->options().has_states)
    return false;
  const int64_t unit = options_.policy.unit;
  for (Sequence* other : prefilling_) {
    if (other->long_rope != sequence.long_rope || other->cache_salt != sequence.cache_salt) continue;
    const std::span<const int32_t> mine = std::span(sequence.tokens).first(sequence.tokens.size() - 1);
    const std::span<const int32_t> theirs =
        std::span(other->tokens).first(static_cast<size_t>(other->num_prompt_tokens));
    const int64_t parting = (std::ranges::mismatch(mine, theirs).in1 - mine.begin()) / unit * unit;
    const int64_t gained = parting - other->prefix.hit_tokens;
    if (gained < kBlocksWorthWaiting * unit || parting <= other->num_computed_tokens) continue;
    std::vector<int64_t>& planned = other->prefix.checkpoints;
    const auto place = std::lower_bound(planned.begin(), planned.end(), parting);
    if (place == planned.end() || *place != parting) planned.insert(place, parting);
    return true;
  }
  return false;
}

void StateCache::expect(const Sequence& sequence) {
  if (tree_ && !sequence.parked && !sequence.shuns_cached) waits_for_another(sequence);
}

bool StateCache::start(Sequence& sequence) {
  if (sequence.is_private && sequence.state_slot != 0) {  // a session's, with its states
    count_start(sequence);
    return true;
  }
  COLUBER_CHECK(sequence.state_slot == 0 && sequence.pages.empty() && sequence.num_computed_tokens == 0,
                "a sequence starts with slot {}, {} pages and {} tokens computed", sequence.state_slot,
                sequence.pages.size(), sequence.num_computed_tokens);
  // Room for all its tokens is there or can be made of what is only cached: or it would soon be preempted.
  const int64_t cached = tree_ ? tree_->bytes() : 0;
  if (request_slots_ > 0 && !fits(bytes_for(sequence.num_tokens() + 1) - cached)) return false;
  sequence.pages.reserve(static_cast<size_t>(pages_for(static_cast<int64_t>(sequence.tokens.capacity()))));
  if (sequence.parked) {
    if (unpark(sequence)) return true;
    if (sequence.parked) return false;
  }
  const bool looks_up = tree_ && !sequence.shuns_cached;
  if (looks_up && waits_for_another(sequence)) return false;
  if (!take_slot(sequence)) return false;
  sequence.prefix_hash = hash_of_nothing(sequence.long_rope);
  if (!looks_up) {
    if (sequence.num_starts == 0) sequence.prefix.reason = MissReason::kDisabled;
  } else if (!find_prefix(sequence)) {
    give_slot_back(sequence);
    return false;
  }
  count_start(sequence);
  if (sequence.is_private) return true;
  plan_checkpoints_of(sequence);
  if (sequence.is_prefilling()) prefilling_.push_back(&sequence);
  return true;
}

bool StateCache::grow(Sequence& sequence, int64_t num_tokens) {
  const auto get = [&] {
    return reserve(sequence, num_tokens) && (fault(PlantedFault::kWriteSharedPage) || unshare(sequence));
  };
  if (get()) return true;
  // The tree may hold pages of the same tokens that another sequence computed, locked by this one's own place: enough
  // to keep a sequence that fits from ever growing.
  if (sequence.place.node < 0 || fault(PlantedFault::kKeepOwnPlace)) return false;
  stand_at(sequence, PrefixTree::kNone);
  return get();
}

// ---- leaving behind --------------------------------------------------------------------------------------------

int64_t StateCache::chunk_end(const Sequence& sequence, int64_t end) const {
  if (!tree_ || !tree_->options().has_states) return end;
  const int64_t start = sequence.num_computed_tokens;
  if (export_alignment_) {
    if (*export_alignment_ == 1) return end;
    inner_checkpoints(options_.policy, facts_of(sequence), sequence.prefix.checkpoints, start, end, positions_);
    for (const int64_t position : positions_)
      if ((position - start) % *export_alignment_ != 0) return position;
    return end;
  }
  if (options_.policy.mode == MambaCacheMode::kAlign) {
    const AlignFacts facts{start, end - start, sequence.num_prompt_tokens, sequence.num_tokens(),
                           sequence.prefix.common_tokens};
    return start + align_split(align_rule_of(options_.policy, end - start), facts);
  }
  for (const int64_t position : sequence.prefix.checkpoints)
    if (position > start && position < end) return position;
  return end;
}

void StateCache::drop_inner_states(Sequence& sequence) {
  for (const InnerState& inner : sequence.inner.list) release_slot(inner.slot);
  sequence.inner.list.clear();
}

// Where there is no room for all, the later ones save more.
void StateCache::take_inner_slots(const PlanRow& row) {
  Sequence& sequence = *row.sequence;
  drop_inner_states(sequence);
  if (!tree_ || !tree_->options().has_states || !export_alignment_ || sequence.request_id == 0 || sequence.is_private)
    return;
  if (row.num_tokens < 2) return;
  inner_checkpoints(options_.policy, facts_of(sequence), sequence.prefix.checkpoints, row.read_position,
                    row.write_position, positions_);
  std::vector<InnerState>& taken = sequence.inner.list;
  for (auto position = positions_.rbegin(); position != positions_.rend(); ++position) {
    const std::optional<int32_t> slot = take(*slots_);
    if (!slot) break;
    tags_.clear(*slot);
    taken.push_back({*position, *slot, {}});
  }
  std::ranges::reverse(taken);
}

// False where one of them is not finite: then none behind it is kept, and nothing of the sequence may be.
bool StateCache::keep_inner_states(Sequence& sequence) {
  std::vector<InnerState>& inner = sequence.inner.list;
  if (inner.empty()) return true;
  if (!fault(PlantedFault::kSkipScrub) && !new_pages_are_finite(sequence)) {
    ++counters_.non_finite;
    drop_inner_states(sequence);
    return false;
  }
  bool finite = true;
  for (InnerState& state : inner) {
    finite = finite && (fault(PlantedFault::kSkipScrub) || is_finite(state.slot));
    if (!finite) continue;
    publish(sequence, {state.position, state.prefix_hash, std::exchange(state.slot, 0), Hand::kInner});
  }
  std::erase_if(inner, [](const InnerState& state) { return state.slot == 0; });
  drop_inner_states(sequence);
  ++times_freed_;  // whoever waited for one of them may begin
  if (!finite) ++counters_.non_finite;
  return finite;
}

bool StateCache::is_finite(const std::byte* page, const std::vector<FloatRange>& ranges) {
  for (const FloatRange& range : ranges)
    for (int64_t row = 0; row < range.rows; ++row)
      if (!all_finite(page + range.offset + row * range.row_stride_bytes, range.dtype, range.count)) return false;
  return true;
}

bool StateCache::is_finite(int32_t id) const {
  return is_finite(on_host(slots_->page(id), state_layout_.slot_bytes), slot_floats_);
}

bool StateCache::states_are_finite(const Sequence& sequence) const { return is_finite(sequence.state_slot); }

// Of whole blocks only: what lies behind the last token was never written.
bool StateCache::new_pages_are_finite(Sequence& sequence) const {
  if (!pages_) return true;
  const int64_t block = attention_layout_.block_size;
  for (int64_t i = sequence.checked_tokens / block; (i + 1) * block <= sequence.num_computed_tokens; ++i) {
    const std::byte* page = pages_->page(sequence.pages[static_cast<size_t>(i)]);
    if (!is_finite(on_host(page, attention_layout_.page_bytes), page_floats_)) return false;
    sequence.checked_tokens = (i + 1) * block;
  }
  return true;
}

CheckpointKind StateCache::kind_of(const Sequence& sequence, const KeptState& state) const {
  const PrefixUse& prefix = sequence.prefix;
  const int64_t unit = options_.policy.unit;
  if (state.hand == Hand::kGive) return CheckpointKind::kTurnEnd;
  if (state.position == prefix.common_tokens / unit * unit) return CheckpointKind::kParting;
  const bool is_last = !prefix.checkpoints.empty() && state.position == prefix.checkpoints.back();
  return is_last ? CheckpointKind::kPromptEnd : CheckpointKind::kAlong;
}

bool StateCache::add_checkpoint(Sequence& sequence, const KeptState& state) {
  const int64_t position = state.position;
  PrefixCheckpoint checkpoint;
  checkpoint.position = position;
  checkpoint.kind = kind_of(sequence, state);
  checkpoint.prefix_hash = state.prefix_hash;
  StateTag tag = tag_at(position, state.prefix_hash);
  tag.checksum = checksum_of(state.slot);
  if (fault(PlantedFault::kTagOffByOne)) ++tag.position;
  int32_t slot = state.slot;
  if (state.hand == Hand::kCopy) {
    const std::optional<int32_t> copy = take(*slots_);
    if (!copy) return false;
    slot = *copy;
  } else if (state.hand == Hand::kGive) {
    sequence.state_slot = 0;
    if (sequence.request_id != 0) --request_slots_;
  }
  if (state.hand != Hand::kGive) {
    const int32_t source =
        fault(PlantedFault::kSwapSlots) && slot > 1 && slots_->in_use(slot - 1) ? slot - 1 : state.slot;
    const bool early = fault(PlantedFault::kPublishBeforeWrite) && !before_write_.empty();
    const std::byte* from = early ? before_write_.data() : slots_->page(source);
    if (from != slots_->page(slot)) device_.copy(slots_->page(slot), from, state_layout_.slot_bytes);
  }
  checkpoint.slot = slot;
  checkpoint.checksum = tag.checksum;
  tags_.advance(slot, tag);
  if (pages_ && position % tree_->options().unit != 0) {
    checkpoint.tail_page = sequence.pages[static_cast<size_t>(position / tree_->options().unit)];
    pages_->retain(checkpoint.tail_page);
  }
  COLUBER_CHECK(tree_->add_checkpoint(sequence.place.node, sequence.tokens, checkpoint), "two checkpoints at {}",
                position);
  ++counters_.published;
  return true;
}

// Leaves the sequence's pages up to the state's position, and the state, to whoever begins like it.
void StateCache::publish(Sequence& sequence, const KeptState& state) {
  if (sequence.place.node < 0) stand_at(sequence, tree_->root(root_name(sequence)));
  const int64_t unit = tree_->options().unit;
  stand_at(sequence, tree_->extend(sequence.place.node, sequence.tokens, state.position, sequence.pages));
  const bool reached = tree_->position_of(sequence.place.node) == state.position / unit * unit;
  const bool added = reached && tree_->options().has_states &&
                     !tree_->has_checkpoint(sequence.place.node, sequence.tokens, state.position) &&
                     add_checkpoint(sequence, state);
  if (!added && state.hand == Hand::kInner) release_slot(state.slot);
  while (options_.cached_bytes > 0 && tree_->bytes() > options_.cached_bytes &&
         tree_->evict(PrefixTree::Wanted::kAny)) {
  }
}

// The same of its running state. False where that, or a page, is not finite.
bool StateCache::publish(Sequence& sequence, Hand hand) {
  if (sequence.num_computed_tokens == 0) return true;
  if (fault(PlantedFault::kDropRing)) set_ring_count(sequence.state_slot, 0);
  fold_rings(sequence);
  if (!fault(PlantedFault::kSkipScrub) && (!states_are_finite(sequence) || !new_pages_are_finite(sequence))) {
    ++counters_.non_finite;
    return false;
  }
  publish(sequence, {sequence.num_computed_tokens, sequence.prefix_hash, sequence.state_slot, hand});
  return true;
}

bool StateCache::keep_step_end(Sequence& sequence) {
  if (!tree_ || sequence.request_id == 0 || sequence.is_private) return true;
  if (!keep_inner_states(sequence)) return false;
  const int64_t position = sequence.num_computed_tokens;
  const bool planned = std::ranges::binary_search(sequence.prefix.checkpoints, position);
  if (!sequence.is_prefilling()) std::erase(prefilling_, &sequence);
  if (planned) ++times_freed_;  // whoever waited for it may begin
  // Without states nothing is planned: the prompt's pages are left as soon as they are whole.
  const bool whole_prompt = !tree_->options().has_states && position >= sequence.num_prompt_tokens &&
                            sequence.checked_tokens + tree_->options().unit <= sequence.num_prompt_tokens;
  if (!planned && !whole_prompt && !keeps_step_end(options_.policy, facts_of(sequence), position)) return true;
  return publish(sequence, Hand::kCopy);
}

// The end of a turn: the next one begins with all of it.
bool StateCache::leaves_its_end(const Sequence& sequence) const {
  return tree_ && sequence.request_id != 0 && !sequence.is_private && sequence.state_slot != 0 &&
         (options_.policy.mode == MambaCacheMode::kAuto || !tree_->options().has_states) &&
         sequence.num_computed_tokens >= options_.policy.unit;
}

void StateCache::finish(Sequence& sequence) {
  if (leaves_its_end(sequence)) publish(sequence, Hand::kGive);  // the state moves over: this costs nothing
  release(sequence);
}

void StateCache::drop_broken(Sequence& sequence) {
  ++counters_.broken_states;
  sequence.lost_tokens = sequence.num_computed_tokens;
  release(sequence);
}

void StateCache::clear_prefixes() {
  if (tree_) tree_->clear();
  ++times_freed_;
  give_back(*slots_);
  if (pages_) give_back(*pages_);
}

void StateCache::fill_with_nan(const Sequence& sequence) {
  std::byte* slot = slots_->page(sequence.state_slot);
  for (const FloatRange& range : slot_floats_)
    device_.fill(slot + range.offset, std::byte{0xFF}, range.count * dtype_size(range.dtype));
}

// ---- proof -----------------------------------------------------------------------------------------------------

std::string StateCache::audit(std::span<const Sequence* const> sequences) const {
  std::vector<int32_t> pages;
  std::vector<int32_t> slots;
  int64_t locks = 0;
  if (tree_) {
    std::string problem = tree_->audit();
    if (!problem.empty()) return problem;
    tree_->held(pages, slots);
  }
  for (const Sequence* sequence : sequences) {
    pages.insert(pages.end(), sequence->pages.begin(), sequence->pages.end());
    if (sequence->state_slot != 0) slots.push_back(sequence->state_slot);
    for (const InnerState& inner : sequence->inner.list) slots.push_back(inner.slot);
    locks += sequence->place.node >= 0 ? 1 : 0;
  }
  if (tree_ && locks != tree_->num_locks())
    return fmt::format("{} sequences stand in the prefix tree and {} places are locked", locks, tree_->num_locks());
  const auto compare = [](std::vector<int32_t>& held, const PagePool& pool) -> std::string {
    std::sort(held.begin(), held.end());
    int64_t distinct = 0;
    for (size_t i = 0; i < held.size(); ++distinct) {
      size_t end = i;
      while (end < held.size() && held[end] == held[i]) ++end;
      if (pool.ref_count(held[i]) != static_cast<int32_t>(end - i))
        return fmt::format("'{}' {}: {} references, {} owners", pool.name(), held[i], pool.ref_count(held[i]), end - i);
      i = end;
    }
    if (distinct != pool.num_used())
      return fmt::format("'{}': {} in use, {} owned", pool.name(), pool.num_used(), distinct);
    return {};
  };
  std::string problem = compare(slots, *slots_);
  if (problem.empty() && pages_) problem = compare(pages, *pages_);
  return problem;
}

}  // namespace coluber
