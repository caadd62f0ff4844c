// SPDX-License-Identifier: Apache-2.0
#include "cache/prefix_tree.h"

#include <algorithm>

#include "base/error.h"
#include "cache/array_list.h"

namespace coluber {

namespace {
constexpr size_t kFewestBuckets = 64;
}

PrefixTree::PrefixTree(const PrefixTreeOptions& options, PrefixTreeOwner& owner) : options_(options), owner_(owner) {
  if (options.unit < 1 || options.max_nodes < 2)
    throw make_error(ErrorCode::kInvalidConfig, "prefix tree: blocks of {} tokens and {} nodes, expected at least 1, 2",
                     options.unit, options.max_nodes);
  buckets_.assign(kFewestBuckets, kNone);
  candidates_.reserve(kSampled);
}

std::span<const int32_t> PrefixTree::tail(int32_t checkpoint) const {
  const Checkpoint& held = checkpoints_[static_cast<size_t>(checkpoint)];
  const auto unit = static_cast<size_t>(options_.unit);
  const auto length = static_cast<size_t>(held.held.position - at(held.node).depth * options_.unit);
  return {tail_tokens_.data() + static_cast<size_t>(checkpoint) * unit, length};
}

// ---- nodes -----------------------------------------------------------------------------------------------------

uint64_t PrefixTree::hash_of(int32_t parent, std::span<const int32_t> block) const {
  return hash_bytes(block.data(), static_cast<int64_t>(block.size_bytes()), static_cast<uint64_t>(parent)).low;
}

int32_t PrefixTree::child(int32_t node, std::span<const int32_t> block_tokens) const {
  const int32_t first = at(node).first_child;
  if (first == kNone) return kNone;
  // Most nodes have one child, which often lies next in memory.
  if (std::ranges::equal(block(first), block_tokens)) return first;
  if (at(node).num_children == 1) return kNone;
  const uint64_t hash = hash_of(node, block_tokens);
  for (int32_t id = buckets_[hash & (buckets_.size() - 1)]; id != kNone; id = at(id).bucket_after)
    if (at(id).parent == node && std::ranges::equal(block(id), block_tokens)) return id;
  return kNone;
}

void PrefixTree::enter_bucket(int32_t node) {
  int32_t& head = buckets_[hash_of(at(node).parent, block(node)) & (buckets_.size() - 1)];
  at(node).bucket_after = head;
  head = node;
}

void PrefixTree::leave_bucket(int32_t node) {
  int32_t* link = &buckets_[hash_of(at(node).parent, block(node)) & (buckets_.size() - 1)];
  while (*link != node) link = &at(*link).bucket_after;
  *link = at(node).bucket_after;
}

void PrefixTree::grow_buckets() {
  buckets_.assign(buckets_.size() * 2, kNone);
  for (size_t id = 0; id < nodes_.size(); ++id)
    if (nodes_[id].in_use && nodes_[id].parent != kNone) enter_bucket(static_cast<int32_t>(id));
}

int32_t PrefixTree::new_node() {
  int32_t id = free_node_;
  if (id != kNone) {
    free_node_ = at(id).bucket_after;
    at(id) = Node{};
  } else {
    id = static_cast<int32_t>(nodes_.size());
    nodes_.emplace_back();
    node_tokens_.resize(nodes_.size() * static_cast<size_t>(options_.unit));
  }
  at(id).in_use = true;
  at(id).last_use = clock_;
  ++num_nodes_;
  return id;
}

int32_t PrefixTree::add_child(int32_t node, std::span<const int32_t> block_tokens) {
  if (num_nodes_ >= options_.max_nodes) {
    ++at(node).locks;
    file(node);
    while (num_nodes_ >= options_.max_nodes && (evict_ghost() || evict(Wanted::kAny))) {
    }
    --at(node).locks;
    file(node);
    if (num_nodes_ >= options_.max_nodes) return kNone;
  }
  const int32_t id = new_node();
  const auto unit = static_cast<size_t>(options_.unit);
  std::ranges::copy(block_tokens, node_tokens_.begin() + static_cast<int64_t>(static_cast<size_t>(id) * unit));
  Node& parent = at(node);
  at(id).parent = node;
  at(id).depth = parent.depth + 1;
  at(id).sibling_after = parent.first_child;
  if (parent.first_child != kNone) at(parent.first_child).sibling_before = id;
  parent.first_child = id;
  ++parent.num_children;
  if (static_cast<size_t>(num_nodes_) > buckets_.size())
    grow_buckets();  // enters this one too
  else
    enter_bucket(id);
  file(node);
  return id;
}

// A leaf that owns nothing.
void PrefixTree::remove_node(int32_t id) {
  Node& node = at(id);
  COLUBER_CHECK(node.in_use && is_ghost_leaf(node), "node {} of the prefix tree is removed while it is needed", id);
  if (node.leaf.listed) list_remove(ghosts_, id, [this](int32_t i) -> ListLinks& { return at(i).leaf; });
  const int32_t parent = node.parent;
  if (parent != kNone) {
    leave_bucket(id);
    if (node.sibling_before != kNone) at(node.sibling_before).sibling_after = node.sibling_after;
    if (node.sibling_after != kNone) at(node.sibling_after).sibling_before = node.sibling_before;
    if (at(parent).first_child == id) at(parent).first_child = node.sibling_after;
    --at(parent).num_children;
  } else {
    std::erase_if(roots_, [id](const auto& root) { return root.second == id; });
  }
  node = Node{};
  node.bucket_after = free_node_;
  free_node_ = id;
  --num_nodes_;
  if (parent != kNone) file(parent);
}

int32_t PrefixTree::root(const std::string& salt) {
  const auto found = roots_.find(salt);
  if (found != roots_.end()) return found->second;
  const int32_t id = new_node();
  roots_.emplace(salt, id);
  file(id);
  return id;
}

void PrefixTree::lock(int32_t node) {
  ++at(node).locks;
  ++num_locks_;
  file(node);
}

void PrefixTree::unlock(int32_t node) {
  COLUBER_CHECK(at(node).in_use && at(node).locks > 0, "node {} of the prefix tree is unlocked but not locked", node);
  --at(node).locks;
  --num_locks_;
  file(node);
}

void PrefixTree::pin(int32_t checkpoint) { ++checkpoints_[static_cast<size_t>(checkpoint)].pins; }

void PrefixTree::unpin(int32_t checkpoint) {
  Checkpoint& held = checkpoints_[static_cast<size_t>(checkpoint)];
  COLUBER_CHECK(held.in_use && held.pins > 0, "checkpoint {} of the prefix tree is unpinned but not pinned",
                checkpoint);
  --held.pins;
}

// ---- look-up ---------------------------------------------------------------------------------------------------

void PrefixTree::consider(int32_t node, std::span<const int32_t> tokens, PrefixMatch& match) const {
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  const int64_t begin = position_of(node);
  if (!options_.has_states) {
    if (begin <= last && begin > match.position) match = {begin, 0, node, kNone, {}};
    return;
  }
  for (int32_t id = at(node).checkpoint; id != kNone; id = checkpoints_[static_cast<size_t>(id)].after) {
    const int64_t position = checkpoints_[static_cast<size_t>(id)].held.position;
    if (position > last || position <= match.position) continue;
    const std::span<const int32_t> begun = tail(id);
    if (std::ranges::equal(begun, tokens.subspan(static_cast<size_t>(begin), begun.size())))
      match = {position, 0, node, id, {}};
  }
}

int64_t PrefixTree::longest_common(int32_t node, std::span<const int32_t> rest) const {
  int64_t longest = 0;
  const auto compare = [&](std::span<const int32_t> other) {
    const auto parted = std::ranges::mismatch(other, rest).in1;
    longest = std::max<int64_t>(longest, parted - other.begin());
  };
  int64_t read = 0;
  for (int32_t id = at(node).first_child; id != kNone && read < kMostSiblings; id = at(id).sibling_after, ++read)
    compare(block(id));
  for (int32_t id = at(node).checkpoint; id != kNone; id = checkpoints_[static_cast<size_t>(id)].after)
    compare(tail(id));
  return longest;
}

bool PrefixTree::known_under_another_salt(std::span<const int32_t> tokens, const std::string& salt) const {
  if (static_cast<int64_t>(tokens.size()) < options_.unit) return false;
  const std::span<const int32_t> first = tokens.first(static_cast<size_t>(options_.unit));
  int64_t read = 0;
  for (const auto& [other, node] : roots_) {
    if (other != salt && child(node, first) != kNone) return true;
    if (++read == kMostSiblings) return false;
  }
  return false;
}

MissReason PrefixTree::reason_of(const PrefixMatch& match, std::span<const int32_t> tokens, const std::string& salt,
                                 bool lost_deeper) const {
  const int64_t last = static_cast<int64_t>(tokens.size()) - 1;
  const int64_t grain = options_.has_states && options_.grain > 0 ? options_.grain : options_.unit;
  const int64_t reachable = std::min(match.common, last) / grain * grain;
  if (match.position > 0 && match.position >= reachable) return MissReason::kNone;
  if (lost_deeper) return MissReason::kEvicted;
  if (match.position == 0 && last < grain) return MissReason::kTooShort;
  if (reachable == 0)
    return known_under_another_salt(tokens, salt) ? MissReason::kDifferentAdapterOrSalt : MissReason::kNoCommonPrefix;
  return MissReason::kNoCheckpointBeforeDivergence;
}

void PrefixTree::touch(int32_t checkpoint) {
  if (checkpoint == kNone) return;
  Checkpoint& held = checkpoints_[static_cast<size_t>(checkpoint)];
  rates_.observe(held.held.kind, held.uses, age_of(held), true);
  ++held.uses;
  held.last_use = clock_;
  held.since = num_lookups_;
  const auto links = [this](int32_t i) -> ListLinks& { return checkpoints_[static_cast<size_t>(i)].age; };
  list_remove(ages_, checkpoint, links);
  list_push_back(ages_, checkpoint, links);
}

PrefixMatch PrefixTree::match(std::span<const int32_t> tokens, const std::string& salt, std::vector<int32_t>& pages) {
  ++clock_;
  ++num_lookups_;
  const size_t pages_before = pages.size();
  const auto unit = static_cast<size_t>(options_.unit);
  PrefixMatch match;
  match.node = root(salt);
  int32_t node = match.node;
  bool usable = true;
  int64_t lost = -1;
  for (size_t begin = 0;; begin += unit) {
    at(node).last_use = clock_;
    if (usable) consider(node, tokens, match);
    const Node& here = at(node);
    const bool lost_page = !options_.has_states && options_.has_pages && here.depth > 0 && here.page == 0;
    if (here.lost_state || lost_page) lost = position_of(node);
    if (begin + unit > tokens.size()) break;
    const int32_t next = child(node, tokens.subspan(begin, unit));
    if (next == kNone) break;
    node = next;
    usable = usable && (!options_.has_pages || at(node).page != 0);
    if (usable && options_.has_pages) pages.push_back(at(node).page);
  }
  const int64_t depth = position_of(node);
  match.common = depth + longest_common(node, tokens.subspan(static_cast<size_t>(depth)));
  match.reason = reason_of(match, tokens, salt, lost > match.position);
  if (options_.has_pages) pages.resize(pages_before + static_cast<size_t>(match.position / options_.unit));
  touch(match.checkpoint);
  return match;
}

// ---- growth ----------------------------------------------------------------------------------------------------

int32_t PrefixTree::extend(int32_t node, std::span<const int32_t> tokens, int64_t position,
                           std::span<const int32_t> pages) {
  const auto unit = static_cast<size_t>(options_.unit);
  ++clock_;
  while (position_of(node) + options_.unit <= position) {
    const auto depth = static_cast<size_t>(at(node).depth);
    const std::span<const int32_t> next_block = tokens.subspan(depth * unit, unit);
    int32_t next = child(node, next_block);
    const bool is_new = next == kNone;
    if (is_new) next = add_child(node, next_block);
    if (next == kNone) return node;
    if (options_.has_pages && at(next).page == 0) {
      at(next).page = pages[depth];
      owner_.retain_page(pages[depth]);
      ++num_pages_;
      ++at(node).num_paged_children;
      file(node);
    }
    at(next).last_use = clock_;
    file(next);
    node = next;
  }
  return node;
}

bool PrefixTree::has_checkpoint(int32_t node, std::span<const int32_t> tokens, int64_t position) const {
  for (int32_t id = at(node).checkpoint; id != kNone; id = checkpoints_[static_cast<size_t>(id)].after) {
    if (checkpoints_[static_cast<size_t>(id)].held.position != position) continue;
    const std::span<const int32_t> begun = tail(id);
    if (std::ranges::equal(begun, tokens.subspan(static_cast<size_t>(position) - begun.size(), begun.size())))
      return true;
  }
  return false;
}

bool PrefixTree::add_checkpoint(int32_t node, std::span<const int32_t> tokens, const PrefixCheckpoint& checkpoint) {
  const int64_t tail_length = checkpoint.position - position_of(node);
  COLUBER_CHECK(tail_length >= 0 && tail_length < options_.unit, "a checkpoint at {} under a node at {}",
                checkpoint.position, position_of(node));
  COLUBER_CHECK(!options_.has_pages || (tail_length > 0) == (checkpoint.tail_page != 0),
                "a checkpoint of {} tokens in its block with page {}", tail_length, checkpoint.tail_page);
  if (has_checkpoint(node, tokens, checkpoint.position)) return false;
  int64_t others = 0;
  int32_t oldest = kNone;
  for (int32_t id = at(node).checkpoint; id != kNone; id = checkpoints_[static_cast<size_t>(id)].after, ++others)
    if (checkpoints_[static_cast<size_t>(id)].pins == 0) oldest = id;
  if (others >= kMostTails && oldest != kNone) drop_checkpoint(oldest);
  int32_t id = free_checkpoint_;
  const auto unit = static_cast<size_t>(options_.unit);
  if (id != kNone) {
    free_checkpoint_ = checkpoints_[static_cast<size_t>(id)].after;
    checkpoints_[static_cast<size_t>(id)] = Checkpoint{};
  } else {
    id = static_cast<int32_t>(checkpoints_.size());
    checkpoints_.emplace_back();
    tail_tokens_.resize(checkpoints_.size() * unit);
  }
  Checkpoint& held = checkpoints_[static_cast<size_t>(id)];
  held.held = checkpoint;
  held.node = node;
  held.last_use = ++clock_;
  held.since = num_lookups_;
  held.in_use = true;
  held.after = at(node).checkpoint;
  at(node).checkpoint = id;
  if (tail_length == 0) at(node).lost_state = false;
  const auto begin = static_cast<size_t>(position_of(node));
  std::ranges::copy(tokens.subspan(begin, static_cast<size_t>(tail_length)),
                    tail_tokens_.begin() + static_cast<int64_t>(static_cast<size_t>(id) * unit));
  list_push_back(ages_, id, [this](int32_t i) -> ListLinks& { return checkpoints_[static_cast<size_t>(i)].age; });
  ++num_checkpoints_;
  file(node);
  weigh(held);
  return true;
}

}  // namespace coluber
