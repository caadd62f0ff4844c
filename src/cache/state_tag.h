// SPDX-License-Identifier: Apache-2.0
//
// What a stored state is proven to be: of which model and layout, after how many tokens, of which prefix. A state is
// read only where its tag equals what the step plan expects, so a state at the wrong position is an error and never a
// wrong answer. Tags of a pool's slots live in one table. Plain values; not thread-safe.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coluber {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  auto operator<=>(const Hash128&) const = default;
  std::string to_string() const;  // 32 hexadecimal digits
};

Hash128 hash_bytes(const void* data, int64_t bytes, uint64_t seed = 0);
// The same hash of bytes that come in pieces.
class HashStream {
 public:
  HashStream();
  ~HashStream();
  HashStream(const HashStream&) = delete;
  HashStream& operator=(const HashStream&) = delete;
  void update(std::span<const std::byte> bytes);
  Hash128 value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};
inline Hash128 hash_text(std::string_view text) { return hash_bytes(text.data(), static_cast<int64_t>(text.size())); }

// Hash of a token prefix, as a chain over its tokens: extending token by token, in chunks or at once gives the same
// value.
class PrefixHash {
 public:
  void extend(int32_t token);
  void extend(std::span<const int32_t> tokens);
  Hash128 value() const noexcept { return value_; }
  int64_t num_tokens() const noexcept { return num_tokens_; }
  bool operator==(const PrefixHash&) const = default;

 private:
  Hash128 value_;
  int64_t num_tokens_ = 0;
};

struct StateTag {
  Hash128 model;           // fingerprint of weights and configuration
  uint64_t layout_id = 0;  // StateLayout::id()
  int64_t position = 0;    // tokens that the state has seen
  Hash128 prefix;          // PrefixHash of those tokens
  bool written = false;
  std::optional<Hash128> checksum;  // of the state's bytes, where asked for or saved
  bool operator==(const StateTag&) const = default;
};

class StateTagTable {
 public:
  StateTagTable(std::string pool_name, int64_t num_slots);

  // Throws Error(kInternal) saying in what the slot's tag differs from `expected` (a slot that nothing was written to
  // differs from everything). Checksums are compared where both sides have one.
  void expect(int32_t slot, const StateTag& expected) const;
  // The slot now holds the state that `tag` describes, with its checksum or none.
  void advance(int32_t slot, const StateTag& tag);
  void clear(int32_t slot);  // nothing is known about the slot any more
  const StateTag& at(int32_t slot) const;
  int64_t num_slots() const noexcept { return num_slots_; }

 private:
  void check_slot(int32_t slot) const;
  StateTag& held(int32_t slot);

  std::string pool_name_;
  int64_t num_slots_;
  std::vector<StateTag> tags_;  // as far as slots were ever written or cleared
};

}  // namespace coluber
