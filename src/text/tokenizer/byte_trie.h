// SPDX-License-Identifier: Apache-2.0
//
// A double-array trie over byte strings: finding all keys that are prefixes of a text reads one 8-byte unit a byte.
// Built once from a set of keys, then immutable and thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace coluber {

class ByteTrie {
 public:
  // Keys must not be empty; of equal keys the last one counts.
  void build(std::vector<std::pair<std::string_view, int32_t>> keys);

  // Calls visit(length, value) for every key that `text` starts with, shortest first.
  template <typename Visit>
  void prefixes(std::string_view text, Visit&& visit) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t child = units_[node].base ^ static_cast<unsigned char>(text[i]);
      if (child >= units_.size() || units_[child].parent != node) return;
      node = child;
      if (values_[node] >= 0) visit(i + 1, values_[node]);
    }
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Unit {
    uint32_t base = kFree;
    uint32_t parent = kFree;
  };
  std::vector<Unit> units_ = std::vector<Unit>(256);
  std::vector<int32_t> values_ = std::vector<int32_t>(256, -1);
};

}  // namespace coluber
