// SPDX-License-Identifier: Apache-2.0
//
// The memory of sequences: one recurrent slot each (all layers' states in one contiguous range) and attention pages,
// from elastic pools; the tags that prove what a slot holds; and the prefix tree, whose states and pages give way where
// sequences need room. Binds the layers to the pools. One thread.
//
// A hit costs one copy of the states, for layers read and write one slot; keeping a state costs one copy while its
// sequence goes on, and none when it ends.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/checkpoint_policy.h"
#include "cache/host_buffers.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "cache/session_layout.h"
#include "base/thread_pool.h"
#include "cache/state_tag.h"
#include "coluber/config.h"
#include "coluber/engine.h"
#include "engine/sequence_memory.h"
#include "engine/step_plan.h"
#include "tensor/device.h"

namespace coluber {

// Faults that tests plant, to see that they are found. Each is a mistake that an engine could make.
enum class PlantedFault {
  kNone,
  kSkipScrub,           // a state with NaN is kept for others
  kTagOffByOne,         // a state is kept as that of one token more
  kSwapSlots,           // a checkpoint is copied from another sequence's slot
  kPublishBeforeWrite,  // a state is kept under the position that its sequence has yet to reach
  kForkWithoutStates,   // a hit shares the pages and forgets the states
  kLeakPageReference,   // a hit's last page is retained twice
  kLeakSlot,            // a preempted sequence's slot is not given back
  kLeakLock,            // a sequence ends and its place stays locked
  kStaleHit,            // the pages of a hit are those of another prefix
  kWriteSharedPage,     // a shared page is written without a copy
  kDropPark,            // a parked sequence comes back without its states
  kWrongBlockSize,      // a hit takes one page too few
  kForgetSalt,          // tenants share prefixes
  kDropRing,            // a state is kept without the inputs in its rings
  kRestoreOffByOne,     // a session comes back at the position before its state's
  kKeepLaterState,      // a session that goes back keeps the state that it has
  kSaveWithoutConv,     // a session is saved without the first state of each layer
  kForkSharesPage,      // two sessions go on in one begun page
  kKeepOwnPlace,  // a sequence that lacks room to grow keeps its place in the tree, and with it what it could have
};

struct StateCacheOptions {
  int64_t num_slots = 0;     // sequences and checkpoints that may exist at once
  int64_t memory_bytes = 0;  // budget of slots and pages together
  bool poison = false;       // tests: pages are filled with NaN when handed out
  Hash128 fingerprint;
  CheckpointPolicy policy;    // mode kNone: there is no prefix cache
  int64_t cached_bytes = 0;   // most that the prefix cache may hold; 0: the whole budget
  int64_t parking_bytes = 0;  // most that parked sequences may hold
  std::string parking_dir;    // for what does not fit there; empty: nothing is parked in files
  PreemptionMode preemption = PreemptionMode::kAuto;
  bool wait_for_prefixes = true;  // who begins like a prompt that is being computed waits for its states
  bool tell_other_salts = false;  // a request is told that what it asks was asked under another salt
  bool verify_states = false;     // a checksum of every state that is written, proven at every read
  StatePacking packing = StatePacking::kAligned;
  bool shared_pages = false;  // states and attention pages from one pool of equal pages
  PlantedFault fault = PlantedFault::kNone;
};

// What the cache did, since it was made.
struct CacheCounters {
  int64_t query_tokens = 0;
  int64_t hit_tokens = 0;
  std::array<int64_t, kNumMissReasons> miss_reasons{};
  int64_t preemptions = 0;
  int64_t parked = 0;
  int64_t recomputed_tokens = 0;
  int64_t published = 0;
  int64_t broken_states = 0;
  int64_t non_finite = 0;  // states that were not kept
  int64_t parked_to_files = 0;
  int64_t parked_bytes = 0;
  int64_t parked_file_bytes = 0;
  int64_t peak_recurrent_bytes = 0;
  int64_t peak_attention_bytes = 0;
};

class StateCache : public SequenceMemory, private PrefixTreeOwner {
 public:
  // Lays the layers' states out and binds the layers. Throws Error(kOutOfMemory) with the sizes where one sequence does
  // not fit.
  StateCache(const EngineConfig& config, Device& device, const StateCacheOptions& options);

  Device& device() const noexcept { return device_; }
  const StateLayout& state_layout() const noexcept { return state_layout_; }
  const AttentionLayout& attention_layout() const noexcept { return attention_layout_; }
  Hash128 fingerprint() const noexcept { return fingerprint_; }

  // Gives the sequence a slot and pages for `num_tokens` tokens in all. False, with nothing changed, where they cannot
  // be had now.
  bool reserve(Sequence& sequence, int64_t num_tokens);
  // To be called where a sequence's tokens have changed. One that has become long (EngineConfig::long_rope_beyond), or
  // is so no more, must be computed from its first token: its positions turn otherwise.
  void follow_length(Sequence& sequence);
  // Gives everything back; the sequence must be computed anew.
  void release(Sequence& sequence);
  // Whether a sequence of that length could ever be reserved in an empty cache, and the bytes it needs.
  bool can_ever_hold(int64_t num_tokens) const;
  int64_t bytes_for(int64_t num_tokens) const;
  int64_t memory_bytes() const noexcept { return memory_bytes_; }

  // For sessions (state_sharing.cc). `to` comes to hold what `from` does: one copy of the states, in the slot that it
  // has or a new one; pages are shared until one of the two writes into them. False, with nothing changed, where no
  // slot can be had.
  bool share(const Sequence& from, Sequence& to);
  // The pages that the sequence's next tokens go to become its own. False, with nothing changed, where none can be had.
  bool unshare(Sequence& sequence);
  // The sequence's states and pages as they are, proven by their tag; zeros after the last token. Its rings are folded.
  SessionBytes saved_bytes(const Sequence& sequence) const;
  // Bytes saved before, in the engine's own layout, go into a sequence that has been reserved for its tokens.
  void restore(Sequence& sequence, const SessionBytes& bytes);
  // A session's sequence, with the states that it has, is a request's from now on; and a session's again, without those
  // that are parked.
  void become_request(Sequence& sequence, int64_t request_id);
  void become_session(Sequence& sequence);
  void release_slot(int32_t slot) override;
  // Writes over the slot's bytes: nothing of it can be read again.
  void scrub(Sequence& sequence);

  // ---- requests (prefix_cache.cc, preemption.cc)
  bool start(Sequence& sequence) override;
  void expect(const Sequence& sequence) override;
  bool grow(Sequence& sequence, int64_t num_tokens) override;
  int64_t chunk_end(const Sequence& sequence, int64_t end) const override;
  void preempt(Sequence& sequence) override;
  uint64_t times_freed() const noexcept override { return times_freed_; }
  // A step of the sequence has ended: its state is kept for others where the policy says so. False where the state is
  // not finite: then nothing is kept, and nothing of it may be.
  bool keep_step_end(Sequence& sequence);
  // The request has ended well: what it computed may serve others. Gives everything back.
  void finish(Sequence& sequence);
  // Its state is not what it should be: the sequence starts anew.
  void drop_broken(Sequence& sequence);
  bool states_are_finite(const Sequence& sequence) const;
  void clear_prefixes();
  const CacheCounters& counters() const noexcept { return counters_; }
  const PrefixTree* tree() const noexcept { return tree_.get(); }
  void set_token_cost_us(double us) noexcept { token_cost_us_ = us; }
  int64_t recurrent_bytes() const noexcept { return slots_->num_used() * state_layout_.slot_bytes; }
  int64_t attention_bytes() const noexcept { return pages_ ? pages_->num_used() * attention_layout_.page_bytes : 0; }
  int64_t used_slots() const noexcept { return slots_->num_used(); }
  int64_t request_slots() const noexcept { return request_slots_; }
  // Tests: a fault from now on; a state that has overflowed.
  void plant(PlantedFault planted) noexcept { options_.fault = planted; }
  void fill_with_nan(const Sequence& sequence);
  // Tests: every page and slot in use is held by the tree or by one of `sequences`, as often as it is counted; the
  // first contradiction, or empty.
  std::string audit(std::span<const Sequence* const> sequences) const;

  int64_t attention_slot(const Sequence& sequence, int64_t position) const;

  // ---- replay (replay.cc): each slot counts the inputs in its rings, which are not in its states yet
  bool replays() const noexcept { return state_layout_.ring_count_offset >= 0; }
  int32_t ring_count(int32_t slot) const;
  void set_ring_count(int32_t slot, int32_t count);
  // The sequence's states take the inputs in, so that they can leave their slot; its tag stays what it is.
  void fold_rings(const Sequence& sequence);
  // What folds states; nothing with rings may be folded before.
  void use_threads(ThreadPool& pool) noexcept { pool_ = &pool; }

  // The three moments of a row: the tag must be what the plan expects; the slot is void; the slot holds the new
  // position.
  void check_read(const PlanRow& row) const;
  // Also takes slots for states that the row leaves from inside its tokens.
  void begin_write(const PlanRow& row);
  void end_write(const PlanRow& row);

  int64_t free_slots() const noexcept;
  int64_t free_pages() const noexcept;
  int64_t mapped_bytes() const noexcept;

 private:
  int64_t pages_for(int64_t num_tokens) const;
  void give_back(PagePool& pool) const;
  StateTag tag_of(const Sequence& sequence) const;  // of a state that holds the sequence's computed tokens
  StateTag tag_at(int64_t position, const PrefixHash& prefix_hash) const;
  // Another slot or so many pages under the budget, or nothing.
  bool fits(int64_t more_bytes) const;
  // One page of the pool, for which cached prefixes give way; none where even that does not help.
  std::optional<int32_t> take(PagePool& pool);
  bool take_slot(Sequence& sequence);
  void give_slot_back(Sequence& sequence);
  void make_pools(const EngineConfig& config);
  void find_floats(const EngineConfig& config);
  void find_rings(const EngineConfig& config);
  void check_ring(const PlanRow& row) const;
  void make_tree();
  int64_t kept_bytes() const;
  void keep_within_budget(PagePool& growing);

  void retain_page(int32_t page) override { pages_->retain(page); }
  void release_page(int32_t page) override { pages_->release(page); }

  // Of no tokens. What a long sequence's first tokens leave behind must never be taken for a short one's.
  static PrefixHash hash_of_nothing(bool long_rope);
  std::string root_name(const Sequence& sequence) const;
  bool find_prefix(Sequence& sequence);
  bool waits_for_another(const Sequence& sequence);
  bool adopt(Sequence& sequence, const PrefixMatch& match);
  bool adopt_states(Sequence& sequence, const PrefixMatch& match);
  bool adopt_tail(Sequence& sequence, const PrefixCheckpoint& checkpoint);
  void count_start(Sequence& sequence);
  PromptFacts facts_of(const Sequence& sequence) const;
  void plan_checkpoints_of(Sequence& sequence) const;
  void take_inner_slots(const PlanRow& row);
  void drop_inner_states(Sequence& sequence);
  bool keep_inner_states(Sequence& sequence);
  // Whose slot a kept state gets: a copy of the running one, the running one itself, or one that the step filled.
  enum class Hand { kCopy, kGive, kInner };
  struct KeptState {
    int64_t position = 0;
    PrefixHash prefix_hash;
    int32_t slot = 0;
    Hand hand = Hand::kCopy;
  };
  bool publish(Sequence& sequence, Hand hand);
  bool leaves_its_end(const Sequence& sequence) const;
  void publish(Sequence& sequence, const KeptState& state);
  CheckpointKind kind_of(const Sequence& sequence, const KeptState& state) const;
  bool add_checkpoint(Sequence& sequence, const KeptState& state);
  bool is_finite(int32_t slot) const;
  void stand_at(Sequence& sequence, int32_t node);
  bool new_pages_are_finite(Sequence& sequence) const;
  bool park(Sequence& sequence);
  std::shared_ptr<ParkedSequence> put_aside(const Sequence& sequence, int64_t bytes, const StateTag& tag);
  void count_parked(const ParkedSequence& parked, int64_t sign) noexcept;
  bool unpark(Sequence& sequence);
  std::optional<Hash128> checksum_of(int32_t slot) const;
  // Bytes of a pool where the program can read them, valid until the next call.
  const std::byte* on_host(const std::byte* bytes, int64_t count) const;
  bool fault(PlantedFault which) const noexcept { return options_.fault == which; }

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

  // Elements of one kind in a slot or a page; of rows that end in their scale the scales alone, which are finite where
  // the rows are.
  struct FloatRange {
    int64_t offset = 0;
    int64_t count = 0;
    DType dtype = DType::kFloat32;
    int64_t rows = 1;
    int64_t row_stride_bytes = 0;
  };
  static bool is_finite(const std::byte* page, const std::vector<FloatRange>& ranges);
  StateCacheOptions options_;
  std::vector<MambaBase*> replay_layers_;
  int64_t ring_length_ = 0;
  ThreadPool* pool_ = nullptr;
  std::vector<FloatRange> slot_floats_;
  std::vector<FloatRange> page_floats_;
  std::unique_ptr<PrefixTree> tree_;  // null where prefix caching is off
  CacheCounters counters_;
  HostBuffers parking_buffers_;
  uint64_t times_freed_ = 0;
  int64_t request_slots_ = 0;  // slots given to requests
  double token_cost_us_ = 1000.0;
  bool told_of_parking_ = false;              // that a file could not be written or read
  std::optional<int64_t> export_alignment_;   // of states inside a chunk; none: a chunk ends where a state is kept
  mutable std::vector<int64_t> positions_;    // scratch
  std::vector<Sequence*> prefilling_;         // of requests, that began and have not reached their prompts' ends
  mutable std::vector<std::byte> host_copy_;  // of another device's
  std::vector<std::byte> before_write_;       // of kPublishBeforeWrite
};

}  // namespace coluber
