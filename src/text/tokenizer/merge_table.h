// SPDX-License-Identifier: Apache-2.0
//
// The merges of a BPE model: a pair of ids to the rank of the merge and the id that comes out. Open addressing at no
// more than half load, one 16-byte slot an entry. Filled while loading, then immutable and thread-safe.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace coluber {

class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = -1;
  };

  void reserve(size_t merges) {
    slots_.assign(std::bit_ceil(merges * 2 + 16), Slot());
    shift_ = 64 - std::countr_zero(slots_.size());
  }
  // A pair that is there already takes the later rank.
  void add(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = key_of(left, right);
    size_t at = home(key);
    while (slots_[at].merge.rank != kNoRank && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {key, merge};
  }
  Merge find(int32_t left, int32_t right) const noexcept {
    const uint64_t key = key_of(left, right);
    for (size_t at = home(key);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].key == key || slots_[at].merge.rank == kNoRank) return slots_[at].merge;
    }
  }

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) noexcept {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t home(uint64_t key) const noexcept {
    return static_cast<size_t>((key ^ key >> 31) * 0x9E3779B97F4A7C15u >> shift_);
  }

  std::vector<Slot> slots_ = std::vector<Slot>(16);
  int shift_ = 60;
};

}  // namespace coluber
