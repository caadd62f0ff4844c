// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/byte_trie.h"

#include <algorithm>
#include <numeric>

namespace coluber {
namespace {

constexpr uint32_t kBlock = 256;
constexpr uint32_t kBlocksToTry = 16;  // older blocks are nearly full; trying them all would be quadratic

// Keys [begin, end) of the sorted list share their first `depth` bytes and meet in `node`.
struct Branch {
  size_t begin;
  size_t end;
  size_t depth;
  uint32_t node;
};

}  // namespace

void ByteTrie::extend() {
  units_.resize(units_.size() + kBlock);
  values_.resize(units_.size(), -1);
  const auto blocks = static_cast<uint32_t>(units_.size() / kBlock);
  first_open_block_ = blocks > kBlocksToTry ? blocks - kBlocksToTry : 0;
}

uint32_t ByteTrie::find_base(const std::vector<unsigned char>& labels) {
  for (uint32_t block = first_open_block_;; ++block) {
    if (block * kBlock >= units_.size()) extend();
    for (uint32_t offset = 0; offset < kBlock; ++offset) {
      const uint32_t base = block * kBlock + (offset ^ labels[0]);
      if (units_[base ^ labels[0]].parent != kFree) continue;
      if (std::all_of(labels.begin(), labels.end(),
                      [&](unsigned char label) { return units_[base ^ label].parent == kFree; })) {
        return base;
      }
    }
  }
}

void ByteTrie::build(std::vector<std::pair<std::string_view, int32_t>> keys) {
  // Sorted through an order, so that equal keys stay in theirs.
  std::vector<uint32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int compared = keys[a].first.compare(keys[b].first);
    return compared != 0 ? compared < 0 : a < b;
  });
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  sorted.reserve(keys.size());
  for (const uint32_t at : order) sorted.push_back(keys[at]);
  keys.swap(sorted);
  units_[0].parent = kFree - 1;  // in use, and nobody's child
  std::vector<Branch> branches = {{0, keys.size(), 0, 0}};
  std::vector<unsigned char> labels;
  while (!branches.empty()) {
    Branch branch = branches.back();
    branches.pop_back();
    while (branch.begin < branch.end && keys[branch.begin].first.size() == branch.depth) {
      if (branch.depth > 0) values_[branch.node] = keys[branch.begin].second;
      ++branch.begin;
    }
    labels.clear();
    for (size_t i = branch.begin; i < branch.end; ++i) {
      const auto label = static_cast<unsigned char>(keys[i].first[branch.depth]);
      if (labels.empty() || labels.back() != label) labels.push_back(label);
    }
    if (labels.empty()) continue;
    const uint32_t base = find_base(labels);
    units_[branch.node].base = base;
    size_t begin = branch.begin;
    for (const unsigned char label : labels) {
      size_t end = begin;
      while (end < branch.end && static_cast<unsigned char>(keys[end].first[branch.depth]) == label) ++end;
      units_[base ^ label].parent = branch.node;
      branches.push_back({begin, end, branch.depth + 1, base ^ label});
      begin = end;
    }
  }
}

}  // namespace coluber
