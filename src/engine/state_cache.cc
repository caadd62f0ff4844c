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

// Memory that a pool keeps for the next request even while it is idle: a part of the budget, and no more than this.
constexpr int64_t kKeptPart = 32;
constexpr int64_t kMostKeptBytes = int64_t{64} << 20;
// Of the budget, that free pages between used ones may take beyond it before cached prefixes give way for their sake.
constexpr int64_t kScatteredPart = 8;

// A node of the prefix tree takes about 200 bytes.
constexpr int64_t kLeastBytesANode = 4096;
constexpr int64_t kMostNodes = int64_t{1} << 22;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of one sequence's first token, by kind; a kind that the model has not is not spoken of.
std::string needs_text(const StateLayout& states, const AttentionLayout& pages) {
  std::string text;
  if (states.slot_bytes > 0) text = fmt::format("{} for its states", format_bytes(states.slot_bytes));
  if (pages.page_bytes > 0)
    text += fmt::format("{}{} for the first {} tokens of attention", text.empty() ? "" : ", ",
                        format_bytes(pages.page_bytes), pages.block_size);
  return text;
}

}  // namespace

PrefixHash StateCache::hash_of_nothing(bool long_rope) {
  constexpr int32_t kNoToken = -1;
  PrefixHash hash;
  if (long_rope) hash.extend(std::span(&kNoToken, 1));
  return hash;
}

StateCache::StateCache(const EngineConfig& config, Device& device, const StateCacheOptions& options)
    : device_(device),
      memory_bytes_(options.memory_bytes),
      tags_("states", 1),
      fingerprint_(options.fingerprint),
      long_rope_beyond_(config.long_rope_beyond),
      options_(options) {
  make_pools(config);
  tags_ = StateTagTable("states", slots_->max_pages());
  if (!can_ever_hold(1))
    throw make_error(ErrorCode::kOutOfMemory,
                     "one sequence needs {} of cache ({}) and {} may be used; allow {} bytes or more "
                     "(--kv-cache-memory-bytes)",
                     format_bytes(bytes_for(1)), needs_text(state_layout_, attention_layout_),
                     format_bytes(memory_bytes_), bytes_for(1));
  find_floats(config);
  find_rings(config);
  make_tree();
  export_alignment_ = get_mamba_prefill_checkpoint_alignment(config);
}

void StateCache::make_pools(const EngineConfig& config) {
  CacheLayouts layouts =
      options_.shared_pages ? make_shared_cache_layouts(config) : make_cache_layouts(config, options_.packing);
  state_layout_ = std::move(layouts.state);
  attention_layout_ = std::move(layouts.attention);
  if (attention_layout_.page_bytes > 0) {
    const int64_t most = std::min(memory_bytes_, kMaxPageRangeBytes) / attention_layout_.page_bytes;
    // A pool that cannot hold one sequence is refused below, with the sizes.
    const int64_t fewest = 2 + layouts.blocks_per_slot;
    pages_ = std::make_unique<PagePool>(device_, "attention pages", attention_layout_.page_bytes,
                                        std::clamp<int64_t>(most + 1, fewest, std::numeric_limits<int32_t>::max()));
    pages_->set_poison(options_.poison);
    bind_attention_layers(config, attention_layout_, *pages_);
  }
  if (pages_ && layouts.blocks_per_slot > 0)
    slots_ = std::make_unique<PagePool>(*pages_, "states", layouts.blocks_per_slot);
  else
    slots_ = std::make_unique<PagePool>(device_, "states", std::max<int64_t>(state_layout_.slot_bytes, 1),
                                        options_.num_slots + 1);
  slots_->set_poison(options_.poison);
  if (state_layout_.slot_bytes > 0) bind_state_layers(config, state_layout_, *slots_);
}

void StateCache::find_floats(const EngineConfig& config) {
  for (const StateLayout::Layer& layer : state_layout_.layers) {
    const auto spec =
        std::get<MambaSpec>(config.layers[static_cast<size_t>(layer.layer_index)]->get_kv_cache_spec(config));
    for (size_t i = 0; i < spec.shapes.size(); ++i)
      slot_floats_.push_back({layer.offset + layer.state_offsets[i], spec.shapes[i].count(), spec.dtypes[i]});
  }
  for (const AttentionLayout::Layer& layer : attention_layout_.layers) {
    auto spec =
        std::get<FullAttentionSpec>(config.layers[static_cast<size_t>(layer.layer_index)]->get_kv_cache_spec(config));
    spec.page_size_padded.reset();
    const int64_t elements = spec.page_size_bytes() / dtype_size(spec.dtype), row = spec.stored_head_size();
    if (spec.row_scales)
      page_floats_.push_back({layer.offset + spec.head_size, 1, DType::kFloat32, elements / row, row});
    else
      page_floats_.push_back({layer.offset, elements, spec.dtype});
  }
}

void StateCache::make_tree() {
  if (options_.policy.mode == MambaCacheMode::kNone) return;
  PrefixTreeOptions tree;
  // Shared pages are long: states are kept at finer places than their ends.
  if (pages_ && !options_.shared_pages) options_.policy.unit = attention_layout_.block_size;
  tree.unit = pages_ ? attention_layout_.block_size : options_.policy.unit;
  tree.grain = options_.policy.unit;
  if (options_.policy.mode != MambaCacheMode::kAuto)
    tree.grain = options_.policy.match_unit.value_or(options_.policy.block_size);
  tree.has_pages = pages_ != nullptr;
  tree.has_states = state_layout_.slot_bytes > 0;
  tree.page_bytes = attention_layout_.page_bytes;
  tree.slot_bytes = state_layout_.slot_bytes;
  // Nodes hold their tokens: at most a small part of the budget, and always enough for what the budget can hold.
  tree.max_nodes = std::clamp<int64_t>(memory_bytes_ / kLeastBytesANode, 4096, kMostNodes);
  PrefixTreeOwner& owner = *this;
  tree_ = std::make_unique<PrefixTree>(tree, owner);
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

int64_t StateCache::kept_bytes() const {
  return std::clamp(memory_bytes_ / kKeptPart, std::min(2 * slots_->slab_bytes(), kMostKeptBytes), kMostKeptBytes);
}

// The kind that idles gives its memory to the one that grows: what is mapped stays within the budget, but for a slab of
// each kind and for used pages that lie scattered.
void StateCache::keep_within_budget(PagePool& growing) {
  if (mapped_bytes() <= memory_bytes_) return;
  PagePool* other = &growing == slots_.get() ? pages_.get() : slots_.get();
  if (other != nullptr) other->trim();
  growing.trim();
  const int64_t most = memory_bytes_ + memory_bytes_ / kScatteredPart + 2 * growing.slab_bytes();
  while (mapped_bytes() > most && tree_ && tree_->evict(PrefixTree::Wanted::kAny)) {
    if (other != nullptr) other->trim();
    growing.trim();
  }
}

std::optional<int32_t> StateCache::take(PagePool& pool) {
  const bool is_slot = &pool == slots_.get();
  const auto wanted = is_slot ? PrefixTree::Wanted::kSlot : PrefixTree::Wanted::kPage;
  const int64_t bytes = is_slot ? state_layout_.slot_bytes : attention_layout_.page_bytes;
  for (;;) {
    const bool has_id = pool.num_free() > 0;
    if (has_id && fits(bytes)) {
      try {
        // None: free pages of a shared pool are no neighbours.
        if (const std::optional<int32_t> id = pool.allocate()) {
          if (is_slot) set_ring_count(*id, 0);
          keep_within_budget(pool);
          counters_.peak_recurrent_bytes = std::max(counters_.peak_recurrent_bytes, recurrent_bytes());
          counters_.peak_attention_bytes = std::max(counters_.peak_attention_bytes, attention_bytes());
          return id;
        }
      } catch (const Error& error) {  // the system has less memory than the budget says
        log_warn("no memory for another of '{}': {}", pool.name(), error.what());
      }
    }
    if (!tree_ || !tree_->evict(has_id ? PrefixTree::Wanted::kAny : wanted)) return std::nullopt;
  }
}

bool StateCache::take_slot(Sequence& sequence) {
  const std::optional<int32_t> slot = take(*slots_);
  if (!slot) return false;
  sequence.state_slot = *slot;
  tags_.clear(*slot);
  if (sequence.request_id != 0) ++request_slots_;
  return true;
}

bool StateCache::reserve(Sequence& sequence, int64_t num_tokens) {
  const bool needs_slot = sequence.state_slot == 0;
  if (needs_slot && !take_slot(sequence)) return false;
  const size_t pages_before = sequence.pages.size();
  const auto pages_after = static_cast<size_t>(pages_for(num_tokens));
  while (sequence.pages.size() < pages_after) {
    if (const std::optional<int32_t> page = take(*pages_)) {
      sequence.pages.push_back(*page);
      continue;
    }
    while (sequence.pages.size() > pages_before) {
      pages_->release(sequence.pages.back());
      sequence.pages.pop_back();
    }
    if (needs_slot) give_slot_back(sequence);
    return false;
  }
  return true;
}

void StateCache::give_slot_back(Sequence& sequence) {
  if (sequence.state_slot == 0) return;
  release_slot(std::exchange(sequence.state_slot, 0));
  if (sequence.request_id != 0) --request_slots_;
}

void StateCache::follow_length(Sequence& sequence) {
  const bool is_long = long_rope_beyond_ > 0 && sequence.num_tokens() > long_rope_beyond_;
  if (is_long == sequence.long_rope) return;
  const bool was_computed = sequence.num_computed_tokens > 0;
  sequence.long_rope = is_long;
  sequence.num_computed_tokens = 0;
  sequence.prefix_hash = hash_of_nothing(is_long);
  sequence.checked_tokens = 0;
  stand_at(sequence, -1);
  if (!was_computed) return;
  tags_.clear(sequence.state_slot);
  sequence.num_prompt_tokens = sequence.num_tokens();
}

void StateCache::release(Sequence& sequence) {
  for (int32_t page : sequence.pages) pages_->release(page);
  sequence.pages.clear();
  give_slot_back(sequence);
  drop_inner_states(sequence);
  stand_at(sequence, -1);
  std::erase(prefilling_, &sequence);
  if (sequence.parked) count_parked(*sequence.parked, -1);
  sequence.parked.reset();
  sequence.checked_tokens = 0;
  ++times_freed_;
  sequence.num_computed_tokens = 0;
  sequence.prefix_hash = hash_of_nothing(sequence.long_rope);
  give_back(*slots_);
  if (pages_) give_back(*pages_);
}

// Memory goes back where most of a large pool lies idle: often enough to matter, and not after every request.
void StateCache::give_back(PagePool& pool) const {
  if (pool.idle_bytes() > kept_bytes() && pool.used_bytes() < pool.mapped_bytes() / 4) pool.trim();
}

void StateCache::release_slot(int32_t slot) {
  tags_.clear(slot);
  slots_->release(slot);
  ++times_freed_;
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

StateTag StateCache::tag_at(int64_t position, const PrefixHash& prefix_hash) const {
  StateTag tag;
  tag.model = fingerprint_;
  tag.layout_id = state_layout_.id;
  tag.position = position;
  tag.prefix = prefix_hash.value();
  tag.written = true;
  return tag;
}

StateTag StateCache::tag_of(const Sequence& sequence) const {
  return tag_at(sequence.num_computed_tokens, sequence.prefix_hash);
}

void StateCache::check_read(const PlanRow& row) const {
  COLUBER_CHECK(row.write_slot != 0 && slots_->in_use(row.write_slot), "slot {} is not owned by the row's sequence",
                row.write_slot);
  COLUBER_CHECK(row.read_position == row.sequence->num_computed_tokens,
                "the plan reads position {} and the sequence is at {}", row.read_position,
                row.sequence->num_computed_tokens);
  if (row.read_position > 0) {
    StateTag expected = tag_of(*row.sequence);
    expected.checksum = checksum_of(row.read_slot);
    tags_.expect(row.read_slot, expected);
    check_ring(row);
  }
  if (!pages_ || fault(PlantedFault::kWriteSharedPage) || fault(PlantedFault::kForkSharesPage)) return;
  const int64_t block = attention_layout_.block_size;
  for (int64_t i = row.read_position / block; i * block < row.write_position; ++i) {
    COLUBER_CHECK(i < std::ssize(row.sequence->pages), "token {} has no page; the sequence has {}", i * block,
                  row.sequence->pages.size());
    const int32_t page = row.sequence->pages[static_cast<size_t>(i)];
    COLUBER_CHECK(pages_->ref_count(page) == 1, "page {} of {} owners would be written at position {}", page,
                  pages_->ref_count(page), row.read_position);
  }
}

void StateCache::begin_write(const PlanRow& row) {
  if (fault(PlantedFault::kPublishBeforeWrite)) {
    const std::byte* state = on_host(slots_->page(row.write_slot), state_layout_.slot_bytes);
    before_write_.assign(state, state + state_layout_.slot_bytes);
  }
  tags_.clear(row.write_slot);
  take_inner_slots(row);
}

std::optional<Hash128> StateCache::checksum_of(int32_t slot) const {
  if (!options_.verify_states) return std::nullopt;
  return hash_bytes(on_host(slots_->page(slot), state_layout_.slot_bytes), state_layout_.slot_bytes);
}

const std::byte* StateCache::on_host(const std::byte* bytes, int64_t count) const {
  if (device_.is_host()) return bytes;
  host_copy_.resize(static_cast<size_t>(count));
  device_.copy(host_copy_.data(), bytes, count);
  return host_copy_.data();
}

void StateCache::end_write(const PlanRow& row) {
  Sequence& sequence = *row.sequence;
  int64_t hashed = row.read_position;
  const auto hash_to = [&](int64_t position) {
    const std::span<const int32_t> tokens(sequence.tokens);
    sequence.prefix_hash.extend(tokens.subspan(static_cast<size_t>(hashed), static_cast<size_t>(position - hashed)));
    hashed = position;
  };
  for (InnerState& inner : sequence.inner.list) {
    hash_to(inner.position);
    inner.prefix_hash = sequence.prefix_hash;
  }
  hash_to(row.write_position);
  sequence.num_computed_tokens = row.write_position;
  StateTag tag = tag_of(sequence);
  tag.checksum = checksum_of(row.write_slot);
  tags_.advance(row.write_slot, tag);
}

int64_t StateCache::free_slots() const noexcept { return slots_->num_free(); }
int64_t StateCache::free_pages() const noexcept { return pages_ ? pages_->num_free() : 0; }
int64_t StateCache::mapped_bytes() const noexcept {
  const bool has_own_pages = pages_ && !pages_->shares(*slots_);
  return slots_->mapped_bytes() + (has_own_pages ? pages_->mapped_bytes() : 0);
}

}  // namespace coluber
