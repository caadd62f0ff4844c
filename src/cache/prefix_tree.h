// SPDX-License-Identifier: Apache-2.0
//
// The prefixes that were computed before: a tree over blocks of tokens, one root a salt. A node stands for one block
// and may own the attention page of its tokens; checkpoints, each a state slot at an exact position, hang at block ends
// or in the block that follows (then with a page of their own for its begun tokens). Nodes outlive what they owned, as
// long as there is room: so a miss can say whether the state was dropped or never kept, and a second request finds the
// place where it parts from the first. A path that a sequence stands on is locked and stays. Holds references to pages
// and slots, never their memory; knows nothing of tags. One thread.
//
// Costs: a look-up walks one node a block and compares its tokens; everything else is constant or as long as what it
// adds. Nothing is allocated once the tree has been at its largest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/array_list.h"
#include "cache/reuse_rates.h"
#include "cache/state_tag.h"
#include "coluber/prefix_cache.h"

namespace coluber {

// Whoever owns the pools.
class PrefixTreeOwner {
 public:
  virtual ~PrefixTreeOwner() = default;
  virtual void retain_page(int32_t page) = 0;
  virtual void release_page(int32_t page) = 0;
  virtual void release_slot(int32_t slot) = 0;
};

struct PrefixTreeOptions {
  int64_t unit = 16;       // tokens of a block: the attention page's, where there is attention
  bool has_pages = true;   // the model has attention layers: a hit needs their pages
  bool has_states = true;  // it has recurrent layers: a hit needs a checkpoint
  int64_t page_bytes = 0;  // what dropping one gives
  int64_t slot_bytes = 0;
  int64_t max_nodes = 1 << 20;
  int64_t grain = 0;  // states are kept at its multiples: a hit no further off is no miss; 0: the unit
};

// What is kept at one position.
struct PrefixCheckpoint {
  int64_t position = 0;
  int32_t slot = 0;
  int32_t tail_page = 0;  // of the begun block, where the position is no multiple of the unit; 0: none
  PrefixHash prefix_hash;
  std::optional<Hash128> checksum;  // of the state's bytes
  CheckpointKind kind = CheckpointKind::kAlong;
};

struct PrefixMatch {
  int64_t position = 0;     // tokens that need not be computed; below the prompt's length
  int64_t common = 0;       // tokens that an earlier sequence began with
  int32_t node = 0;         // where `position` lies; the root for 0
  int32_t checkpoint = -1;  // none: `position` is 0, or the model keeps no states
  MissReason reason = MissReason::kNone;
};

class PrefixTree {
 public:
  static constexpr int32_t kNone = -1;
  enum class Wanted { kAny, kSlot, kPage };

  PrefixTree(const PrefixTreeOptions& options, PrefixTreeOwner& owner);
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest prefix of `tokens` that can be reused and leaves at least one token to compute. Appends its whole
  // blocks' pages to `pages` (not retained). A match counts as a use.
  PrefixMatch match(std::span<const int32_t> tokens, const std::string& salt, std::vector<int32_t>& pages);
  const PrefixCheckpoint& checkpoint(int32_t id) const { return checkpoints_[static_cast<size_t>(id)].held; }
  // Where a sequence of that salt begins.
  int32_t root(const std::string& salt);

  // A sequence stands at the node: it and the nodes before it stay. Balanced by `unlock`.
  void lock(int32_t node);
  void unlock(int32_t node);
  // Stays although memory is short, until unpinned.
  void pin(int32_t checkpoint);
  void unpin(int32_t checkpoint);

  // Makes the path from `node` (a block end of the same tokens) to the last block end at or before `position`; blocks
  // without a page get the sequence's. Returns the node reached: short of it only where the tree is full. `pages` may
  // be empty where the model has none.
  int32_t extend(int32_t node, std::span<const int32_t> tokens, int64_t position, std::span<const int32_t> pages);
  bool has_checkpoint(int32_t node, std::span<const int32_t> tokens, int64_t position) const;
  // `node` is the block end at or before the position. Slot and tail page become the tree's. False, and nothing taken,
  // where the position has one already.
  bool add_checkpoint(int32_t node, std::span<const int32_t> tokens, const PrefixCheckpoint& checkpoint);
  void drop_checkpoint(int32_t checkpoint);

  // Drops what is worth least: recompute cost times likelihood, by byte. False where nothing can go. Of many states
  // some that are drawn are compared.
  bool evict(Wanted wanted);
  // Everything that no lock or pin holds.
  void clear();

  int64_t num_slots() const noexcept { return num_checkpoints_; }
  int64_t num_pages() const noexcept { return num_pages_; }
  int64_t num_nodes() const noexcept { return num_nodes_; }
  int64_t num_locks() const noexcept { return num_locks_; }
  int64_t num_evicted() const noexcept { return num_evicted_; }
  int64_t bytes() const noexcept { return num_pages_ * options_.page_bytes + num_checkpoints_ * options_.slot_bytes; }
  const PrefixTreeOptions& options() const noexcept { return options_; }
  int64_t position_of(int32_t node) const { return nodes_[static_cast<size_t>(node)].depth * options_.unit; }

  // Tests: counts, links and lists agree; the first contradiction, or empty.
  std::string audit() const;
  // Tests: every page and slot that the tree holds, with one entry a reference.
  void held(std::vector<int32_t>& pages, std::vector<int32_t>& slots) const;

 private:
  static constexpr int64_t kMostTails = 64;        // checkpoints of one node; each look-up reads them all
  static constexpr int64_t kMostSiblings = 64;     // read to find where prompts part
  static constexpr size_t kSampled = 64;           // checkpoints that are compared when one must go
  static constexpr size_t kWeighed = 4;            // of them, weighed anew
  static constexpr int64_t kMostBlocksBack = 512;  // walked to find what a checkpoint saves

  struct Node {
    int32_t parent = kNone;
    int32_t first_child = kNone;
    int32_t sibling_before = kNone;
    int32_t sibling_after = kNone;
    int32_t bucket_after = kNone;  // also the list of free nodes
    int32_t page = 0;
    int32_t checkpoint = kNone;  // first of the node's, whatever their positions
    int32_t num_children = 0;
    int32_t num_paged_children = 0;
    int32_t locks = 0;
    int64_t depth = 0;  // blocks from the root
    int64_t last_use = 0;
    bool in_use = false;
    bool lost_state = false;  // a checkpoint here was dropped
    bool is_leaf = false;     // which list it is in
    ListLinks leaf;           // in leaves_: a page that may be dropped; in ghosts_: nothing at all
  };
  struct Checkpoint {
    PrefixCheckpoint held;
    int32_t node = kNone;
    int32_t after = kNone;  // the node's next; also the list of free checkpoints
    int32_t pins = 0;
    int64_t last_use = 0;  // by the clock
    int64_t since = 0;     // the same in look-ups
    int64_t uses = 0;
    double saved_a_byte = 0.0;  // tokens computed again without it, by byte that dropping it gives: when last weighed
    bool in_use = false;
    ListLinks age;
  };

  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  std::span<const int32_t> block(int32_t node) const {
    const auto unit = static_cast<size_t>(options_.unit);
    return {node_tokens_.data() + static_cast<size_t>(node) * unit, unit};
  }
  std::span<const int32_t> tail(int32_t checkpoint) const;

  uint64_t hash_of(int32_t parent, std::span<const int32_t> block) const;
  int32_t child(int32_t node, std::span<const int32_t> block) const;
  int32_t add_child(int32_t node, std::span<const int32_t> block);
  int32_t new_node();
  void remove_node(int32_t node);
  void enter_bucket(int32_t node);
  void leave_bucket(int32_t node);
  void grow_buckets();

  void consider(int32_t node, std::span<const int32_t> tokens, PrefixMatch& match) const;
  int64_t longest_common(int32_t node, std::span<const int32_t> rest) const;
  MissReason reason_of(const PrefixMatch& match, std::span<const int32_t> tokens, const std::string& salt,
                       bool lost_deeper) const;
  bool known_under_another_salt(std::span<const int32_t> tokens, const std::string& salt) const;
  void touch(int32_t checkpoint);

  void drop_page(int32_t node);
  // Puts the node in the list it belongs to, or in none.
  void file(int32_t node);
  bool may_lose_page(const Node& node) const;
  bool is_ghost_leaf(const Node& node) const;
  int64_t age_of(const Checkpoint& checkpoint) const noexcept { return num_lookups_ - checkpoint.since; }
  void weigh(Checkpoint& checkpoint) const;
  bool may_go(const Checkpoint& checkpoint, bool at_leaves_only) const;
  void sample(bool at_leaves_only);
  int32_t least_worth(bool at_leaves_only);
  bool evict_checkpoint(bool at_leaves_only);
  bool evict_page();
  bool evict_ghost();
  std::string audit_node(int32_t node) const;

  PrefixTreeOptions options_;
  PrefixTreeOwner& owner_;
  std::vector<Node> nodes_;
  std::vector<int32_t> node_tokens_;  // [nodes, unit]
  std::vector<Checkpoint> checkpoints_;
  std::vector<int32_t> tail_tokens_;  // [checkpoints, unit]
  std::vector<int32_t> buckets_;
  std::unordered_map<std::string, int32_t> roots_;
  int32_t free_node_ = kNone;
  int32_t free_checkpoint_ = kNone;
  ArrayList leaves_;
  ArrayList ghosts_;
  ArrayList ages_;
  int64_t num_nodes_ = 0;
  int64_t num_pages_ = 0;
  int64_t num_checkpoints_ = 0;
  int64_t num_locks_ = 0;
  int64_t num_evicted_ = 0;
  int64_t clock_ = 0;
  int64_t num_lookups_ = 0;
  ReuseRates rates_;
  struct Candidate {
    double worth = 0.0;
    int64_t last_use = 0;
    int32_t checkpoint = kNone;
  };
  std::vector<Candidate> candidates_;
  uint64_t random_ = 1;
};

}  // namespace coluber
