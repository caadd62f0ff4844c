// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/vocab.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace coluber {
namespace {

constexpr size_t kChunkBytes = 1 << 16;

}  // namespace

uint64_t hash_bytes(std::string_view bytes) noexcept {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t hash = bytes.size() * kMultiplier;
  const char* at = bytes.data();
  size_t left = bytes.size();
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 32;
  };
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    mix(word);
  }
  if (left > 0) {
    uint64_t word = 0;
    for (size_t i = 0; i < left; ++i) word |= static_cast<uint64_t>(static_cast<unsigned char>(at[i])) << (8 * i);
    mix(word);
  }
  return hash;
}

void Vocab::reserve(size_t tokens) {
  tokens_.reserve(tokens);
  grow(std::bit_ceil(std::max<size_t>(16, tokens * 2)));
}

std::string_view Vocab::store(std::string_view token) {
  const size_t needed = std::max<size_t>(token.size(), 1);
  if (chunks_.empty() || chunk_used_ + needed > chunk_bytes_) {
    chunk_bytes_ = std::max(kChunkBytes, needed);
    chunks_.push_back(std::make_unique<char[]>(chunk_bytes_));
    chunk_used_ = 0;
  }
  char* at = chunks_.back().get() + chunk_used_;
  if (!token.empty()) std::memcpy(at, token.data(), token.size());
  chunk_used_ += needed;
  return {at, token.size()};
}

void Vocab::grow(size_t slots) {
  if (slots <= slots_.size()) return;
  std::vector<Slot> old(slots);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id == kNone) continue;
    size_t at = slot.hash & (slots - 1);
    while (slots_[at].id != kNone) at = (at + 1) & (slots - 1);
    slots_[at] = slot;
  }
}

bool Vocab::add(std::string_view token, int64_t id) {
  if (id < 0 || id > INT32_MAX - 1 || contains(static_cast<int32_t>(id)) || find(token) != kNone) return false;
  if ((count_ + 1) * 2 > slots_.size()) grow(std::max<size_t>(16, slots_.size() * 2));
  if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
  tokens_[static_cast<size_t>(id)] = store(token);
  const auto hash = static_cast<uint32_t>(hash_bytes(token));
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].id != kNone) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {hash, static_cast<int32_t>(id)};
  ++count_;
  longest_ = std::max(longest_, token.size());
  return true;
}

int32_t Vocab::find(std::string_view token) const noexcept {
  if (slots_.empty()) return kNone;
  const auto hash = static_cast<uint32_t>(hash_bytes(token));
  for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.id == kNone) return kNone;
    if (slot.hash == hash && tokens_[static_cast<size_t>(slot.id)] == token) return slot.id;
  }
}

}  // namespace coluber
