// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/byte_trie.h"

#include <algorithm>
#include <array>
#include <bit>
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

// Which units no node uses yet, a bit each: the nodes of a real vocabulary crowd blocks until few units are free, and
// looking at every unit for every node would take seconds.
class FreeUnits {
 public:
  // The base of the first place where all labels (at least one) find a free unit.
  uint32_t find_base(const std::vector<unsigned char>& labels) {
    const size_t newest = blocks_.size() > kBlocksToTry ? blocks_.size() - kBlocksToTry : 0;
    for (size_t block = newest;; ++block) {
      if (block == blocks_.size()) blocks_.emplace_back();
      if (blocks_[block].count < labels.size()) continue;
      const auto first = static_cast<uint32_t>(block * kBlock);
      if (const int place = first_fit(blocks_[block], labels); place >= 0)
        return first + (static_cast<uint32_t>(place) ^ labels[0]);
    }
  }
  void take(uint32_t unit) {
    Block& block = blocks_[unit / kBlock];
    block.words[unit % kBlock / kWord] &= ~(uint64_t{1} << unit % kWord);
    --block.count;
  }
  size_t size() const { return blocks_.size() * kBlock; }

 private:
  static constexpr uint32_t kWord = 64;
  struct Block {
    std::array<uint64_t, kBlock / kWord> words = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};
    uint32_t count = kBlock;

    bool is_free(uint32_t unit) const { return (words[unit / kWord] >> unit % kWord & 1) != 0; }
  };

  // Where in the block the first label goes; -1 for nowhere.
  static int first_fit(const Block& block, const std::vector<unsigned char>& labels) {
    for (uint32_t w = 0; w < block.words.size(); ++w) {
      for (uint64_t left = block.words[w]; left != 0; left &= left - 1) {
        const uint32_t place = w * kWord + static_cast<uint32_t>(std::countr_zero(left));
        const uint32_t base = place ^ labels[0];
        if (std::all_of(labels.begin() + 1, labels.end(),
                        [&](unsigned char label) { return block.is_free(base ^ label); }))
          return static_cast<int>(place);
      }
    }
    return -1;
  }

  std::vector<Block> blocks_ = std::vector<Block>(1);
};

}  // namespace

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
  FreeUnits free;
  free.take(0);
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
    const uint32_t base = free.find_base(labels);
    units_.resize(free.size());
    values_.resize(free.size(), -1);
    units_[branch.node].base = base;
    size_t begin = branch.begin;
    for (const unsigned char label : labels) {
      size_t end = begin;
      while (end < branch.end && static_cast<unsigned char>(keys[end].first[branch.depth]) == label) ++end;
      free.take(base ^ label);
      units_[base ^ label].parent = branch.node;
      branches.push_back({begin, end, branch.depth + 1, base ^ label});
      begin = end;
    }
  }
}

}  // namespace coluber
