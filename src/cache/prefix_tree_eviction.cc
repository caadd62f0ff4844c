// SPDX-License-Identifier: Apache-2.0
//
// What the prefix tree drops when memory is short, and the proof that its counts agree.
#include <algorithm>
#include <span>
#include <tuple>

#include "base/error.h"
#include "cache/array_list.h"
#include "cache/prefix_tree.h"

namespace coluber {

bool PrefixTree::may_lose_page(const Node& node) const {
  return node.page != 0 && node.num_paged_children == 0 && node.locks == 0 && node.checkpoint == kNone;
}

bool PrefixTree::is_ghost_leaf(const Node& node) const {
  return node.page == 0 && node.num_children == 0 && node.locks == 0 && node.checkpoint == kNone;
}

void PrefixTree::file(int32_t id) {
  Node& node = at(id);
  const auto links = [this](int32_t i) -> ListLinks& { return at(i).leaf; };
  if (node.leaf.listed) list_remove(node.is_leaf ? leaves_ : ghosts_, id, links);
  node.is_leaf = may_lose_page(node);
  if (node.is_leaf) {
    // A page behind the last checkpoint serves nobody. Without states, a block is as old as its last use.
    const bool oldest = options_.has_states || (leaves_.first != kNone && node.last_use <= at(leaves_.first).last_use);
    if (oldest)
      list_push_front(leaves_, id, links);
    else
      list_push_back(leaves_, id, links);
  } else if (is_ghost_leaf(node)) {
    list_push_back(ghosts_, id, links);
  }
}

void PrefixTree::drop_page(int32_t id) {
  Node& node = at(id);
  owner_.release_page(node.page);
  node.page = 0;
  --num_pages_;
  --at(node.parent).num_paged_children;
  file(id);
  file(node.parent);
}

void PrefixTree::drop_checkpoint(int32_t id) {
  Checkpoint& dropped = checkpoints_[static_cast<size_t>(id)];
  COLUBER_CHECK(dropped.in_use, "checkpoint {} of the prefix tree is dropped twice", id);
  const int32_t node = dropped.node;
  int32_t* link = &at(node).checkpoint;
  while (*link != id) link = &checkpoints_[static_cast<size_t>(*link)].after;
  *link = dropped.after;
  list_remove(ages_, id, [this](int32_t i) -> ListLinks& { return checkpoints_[static_cast<size_t>(i)].age; });
  owner_.release_slot(dropped.held.slot);
  if (dropped.held.tail_page != 0) owner_.release_page(dropped.held.tail_page);
  at(node).lost_state = true;
  dropped = Checkpoint{};
  dropped.after = free_checkpoint_;
  free_checkpoint_ = id;
  --num_checkpoints_;
  file(node);
}

// Dropping it gives its slot, and the pages behind whatever else is kept or goes on before it.
void PrefixTree::weigh(Checkpoint& checkpoint) const {
  int64_t nearest = 0;
  int64_t back = 0;
  int64_t pages = 0;
  bool is_alone = at(checkpoint.node).num_paged_children == 0;
  for (int32_t id = checkpoint.node; id != kNone; id = at(id).parent, ++back) {
    for (int32_t other = at(id).checkpoint; other != kNone; other = checkpoints_[static_cast<size_t>(other)].after) {
      const int64_t position = checkpoints_[static_cast<size_t>(other)].held.position;
      if (position < checkpoint.held.position) nearest = std::max(nearest, position);
    }
    if (nearest > 0) break;
    if (back == kMostBlocksBack) {
      nearest = position_of(id);
      break;
    }
    is_alone = is_alone && (back == 0 || at(id).num_paged_children == 1);
    if (is_alone) ++pages;
  }
  const int64_t bytes = options_.slot_bytes + (options_.has_pages ? pages * options_.page_bytes : 0);
  checkpoint.saved_a_byte = static_cast<double>(std::max<int64_t>(checkpoint.held.position - nearest, 1)) /
                            static_cast<double>(std::max<int64_t>(bytes, 1));
}

bool PrefixTree::may_go(const Checkpoint& checkpoint, bool at_leaves_only) const {
  if (!checkpoint.in_use || checkpoint.pins > 0) return false;
  const Node& node = at(checkpoint.node);
  return !at_leaves_only || checkpoint.held.tail_page != 0 || (node.num_paged_children == 0 && node.locks == 0);
}

// All where there are few. Of many, some by chance: to draw among the oldest alone would keep what is new and useless.
void PrefixTree::sample(bool at_leaves_only) {
  candidates_.clear();
  const auto consider = [&](int32_t id) {
    if (may_go(checkpoints_[static_cast<size_t>(id)], at_leaves_only))
      candidates_.push_back({0.0, checkpoints_[static_cast<size_t>(id)].last_use, id});
  };
  const bool are_many = num_checkpoints_ > static_cast<int64_t>(kSampled);
  for (size_t drawn = 0; are_many && drawn < 4 * kSampled && candidates_.size() < kSampled; ++drawn) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    consider(static_cast<int32_t>((random_ >> 33) % checkpoints_.size()));
  }
  if (!candidates_.empty()) return;
  for (int32_t id = ages_.first; id != kNone && candidates_.size() < kSampled;
       id = checkpoints_[static_cast<size_t>(id)].age.after)
    consider(id);
}

// What others saved changes with what is dropped and kept around them. To weigh costs a walk: so it is done for those
// that seem to be worth least, and for some by the way.
int32_t PrefixTree::least_worth(bool at_leaves_only) {
  sample(at_leaves_only);
  if (candidates_.empty()) return kNone;
  const auto appraise = [this](Candidate& candidate) {
    const Checkpoint& checkpoint = checkpoints_[static_cast<size_t>(candidate.checkpoint)];
    candidate.worth = checkpoint.saved_a_byte * rates_.rate(checkpoint.held.kind, checkpoint.uses, age_of(checkpoint));
  };
  const auto weigh_first = [&](size_t count) {
    for (Candidate& candidate : std::span(candidates_).first(count)) {
      weigh(checkpoints_[static_cast<size_t>(candidate.checkpoint)]);
      appraise(candidate);
    }
  };
  const size_t count = std::min(kWeighed, candidates_.size());
  weigh_first(count);
  std::ranges::for_each(std::span(candidates_).subspan(count), appraise);
  const auto by_worth = [](const Candidate& a, const Candidate& b) {
    return std::tie(a.worth, a.last_use) < std::tie(b.worth, b.last_use);
  };
  std::ranges::partial_sort(candidates_, candidates_.begin() + static_cast<int64_t>(count), by_worth);
  weigh_first(count);
  return std::min_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(count), by_worth)->checkpoint;
}

bool PrefixTree::evict_checkpoint(bool at_leaves_only) {
  const int32_t id = least_worth(at_leaves_only);
  if (id == kNone) return false;
  const Checkpoint& least = checkpoints_[static_cast<size_t>(id)];
  rates_.observe(least.held.kind, least.uses, age_of(least), false);
  drop_checkpoint(id);
  ++num_evicted_;
  return true;
}

bool PrefixTree::evict_page() {
  if (leaves_.first == kNone) return false;
  drop_page(leaves_.first);
  return true;
}

bool PrefixTree::evict_ghost() {
  if (ghosts_.first == kNone) return false;
  remove_node(ghosts_.first);
  return true;
}

bool PrefixTree::evict(Wanted wanted) {
  if (wanted == Wanted::kSlot) return evict_checkpoint(false);
  return evict_page() || (wanted == Wanted::kPage && evict_checkpoint(true)) || evict_checkpoint(false);
}

void PrefixTree::clear() {
  const int64_t evicted = num_evicted_;
  while (evict(Wanted::kAny)) {
  }
  while (evict_ghost()) {
  }
  num_evicted_ = evicted;
}

// ---- proof -----------------------------------------------------------------------------------------------------

std::string PrefixTree::audit_node(int32_t id) const {
  const Node& node = at(id);
  int32_t children = 0;
  int32_t paged = 0;
  for (int32_t next = node.first_child; next != kNone; next = at(next).sibling_after, ++children) {
    if (at(next).parent != id || at(next).depth != node.depth + 1 || !at(next).in_use)
      return fmt::format("node {} has child {} that is not its own", id, next);
    if (child(id, block(next)) != next) return fmt::format("node {} is not found by its tokens", next);
    paged += at(next).page != 0 ? 1 : 0;
  }
  if (children != node.num_children || paged != node.num_paged_children)
    return fmt::format("node {} counts {} children and {} with pages, has {} and {}", id, node.num_children,
                       node.num_paged_children, children, paged);
  if (node.parent != kNone && node.page != 0 && at(node.parent).parent != kNone && at(node.parent).page == 0)
    return fmt::format("node {} has a page, its parent {} has none", id, node.parent);
  const bool listed = may_lose_page(node) || is_ghost_leaf(node);
  if (listed != node.leaf.listed || (listed && node.is_leaf != may_lose_page(node)))
    return fmt::format("node {} is in the wrong list", id);
  for (int32_t c = node.checkpoint; c != kNone; c = checkpoints_[static_cast<size_t>(c)].after)
    if (!checkpoints_[static_cast<size_t>(c)].in_use || checkpoints_[static_cast<size_t>(c)].node != id)
      return fmt::format("node {} has checkpoint {} that is not its own", id, c);
  return {};
}

std::string PrefixTree::audit() const {
  int64_t nodes = 0;
  int64_t pages = 0;
  int64_t locks = 0;
  int64_t listed = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].in_use) continue;
    ++nodes;
    pages += nodes_[i].page != 0 ? 1 : 0;
    locks += nodes_[i].locks;
    listed += nodes_[i].leaf.listed ? 1 : 0;
    std::string problem = audit_node(static_cast<int32_t>(i));
    if (!problem.empty()) return problem;
  }
  const int64_t checkpoints = std::ranges::count_if(checkpoints_, &Checkpoint::in_use);
  if (nodes != num_nodes_ || pages != num_pages_ || locks != num_locks_ || checkpoints != num_checkpoints_)
    return fmt::format("{} nodes, {} pages, {} locks, {} checkpoints counted as {}, {}, {}, {}", nodes, pages, locks,
                       checkpoints, num_nodes_, num_pages_, num_locks_, num_checkpoints_);
  if (listed != leaves_.size + ghosts_.size || ages_.size != num_checkpoints_)
    return fmt::format("lists of {} leaves, {} ghosts and {} checkpoints for {} and {}", leaves_.size, ghosts_.size,
                       ages_.size, listed, num_checkpoints_);
  return {};
}

void PrefixTree::held(std::vector<int32_t>& pages, std::vector<int32_t>& slots) const {
  for (const Node& node : nodes_)
    if (node.in_use && node.page != 0) pages.push_back(node.page);
  for (const Checkpoint& checkpoint : checkpoints_) {
    if (!checkpoint.in_use) continue;
    slots.push_back(checkpoint.held.slot);
    if (checkpoint.held.tail_page != 0) pages.push_back(checkpoint.held.tail_page);
  }
}

}  // namespace coluber
