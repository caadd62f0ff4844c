// SPDX-License-Identifier: Apache-2.0
//
// Ids of words met before, direct-mapped: a word that lands on another's slot takes it over, so the cache never grows.
// Prose repeats its words, and looking a short word up costs one cache line where merging it costs dozens. Not
// thread-safe; it belongs to one Scratch, and so to one tokenizer.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace coluber {

class WordCache {
 public:
  static constexpr size_t kMaxKeyBytes = 22;
  static constexpr size_t kMaxIds = 10;

  struct alignas(64) Slot {
    uint8_t key_bytes;  // 0: empty
    uint8_t count;
    char key[kMaxKeyBytes];
    int32_t ids[kMaxIds];
  };
  static_assert(sizeof(Slot) == 64);

  // The slot where `word` belongs, or null for words that are too long or empty. `hit` tells whether it is there.
  Slot* find(std::string_view word, bool& hit) {
    hit = false;
    if (word.empty() || word.size() > kMaxKeyBytes) return nullptr;
    if (slots_ == nullptr) slots_ = std::make_unique<Slot[]>(kSlots);
    uint64_t parts[3] = {};
    load(word, parts);
    uint64_t hash = (parts[0] ^ word.size()) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 29 ^ parts[1]) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ hash >> 32 ^ parts[2]) * 0x94D049BB133111EBu;
    Slot* slot = &slots_[hash >> (64 - kSlotBits)];
    hit = slot->key_bytes == word.size() && std::memcmp(slot->key, parts, kMaxKeyBytes) == 0;
    return slot;
  }

  static void store(Slot* slot, std::string_view word, const int32_t* ids, size_t count) {
    if (slot == nullptr || count > kMaxIds) return;
    uint64_t parts[3] = {};
    load(word, parts);
    slot->key_bytes = static_cast<uint8_t>(word.size());
    slot->count = static_cast<uint8_t>(count);
    std::memcpy(slot->key, parts, kMaxKeyBytes);
    for (size_t i = 0; i < count; ++i) slot->ids[i] = ids[i];
  }

 private:
  static constexpr int kSlotBits = 15;  // 2 MiB: about what a core's second cache holds
  static constexpr size_t kSlots = size_t{1} << kSlotBits;

  // The word, padded with zeros. Words of 8 bytes or more are read as overlapping halves would be: plain copies of
  // fixed size.
  static void load(std::string_view word, uint64_t (&parts)[3]) {
    auto* out = reinterpret_cast<char*>(parts);
    const char* in = word.data();
    const size_t size = word.size();
    if (size >= 16) {
      std::memcpy(out, in, 16);
      std::memcpy(out + size - 8, in + size - 8, 8);
    } else if (size >= 8) {
      std::memcpy(out, in, 8);
      std::memcpy(out + size - 8, in + size - 8, 8);
    } else if (size >= 4) {
      std::memcpy(out, in, 4);
      std::memcpy(out + size - 4, in + size - 4, 4);
    } else {
      out[0] = in[0];
      if (size > 1) out[1] = in[1];
      if (size > 2) out[2] = in[2];
    }
  }

  std::unique_ptr<Slot[]> slots_;
};

}  // namespace coluber
