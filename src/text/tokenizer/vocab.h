// SPDX-License-Identifier: Apache-2.0
//
// Tokens by id and ids by token. Filled once while a tokenizer is loaded, then immutable and thread-safe. Ids may leave
// gaps, but not so wide that the table of ids would dwarf the tokens. It knows nothing of what tokens mean.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace coluber {

uint64_t hash_bytes(std::string_view bytes) noexcept;

class Vocab {
 public:
  static constexpr int32_t kNone = -1;

  void reserve(size_t tokens);
  // False where the id is taken by another token, negative, or beyond `max_allowed_id`.
  bool add(std::string_view token, int64_t id);
  static int64_t max_allowed_id(size_t tokens) noexcept {
    return static_cast<int64_t>(tokens) * 8 + (int64_t{1} << 20);
  }

  int32_t find(std::string_view token) const noexcept;  // kNone where it is not there
  bool contains(int32_t id) const noexcept {
    return id >= 0 && static_cast<size_t>(id) < tokens_.size() && tokens_[static_cast<size_t>(id)].data() != nullptr;
  }
  std::string_view token(int32_t id) const noexcept {
    return contains(id) ? tokens_[static_cast<size_t>(id)] : std::string_view();
  }
  size_t size() const noexcept { return count_; }
  int32_t end_id() const noexcept { return static_cast<int32_t>(tokens_.size()); }  // one past the highest id
  size_t longest_token_bytes() const noexcept { return longest_; }

 private:
  struct Slot {
    uint32_t hash = 0;
    int32_t id = kNone;
  };
  std::string_view store(std::string_view token);
  void grow(size_t slots);

  std::vector<Slot> slots_;
  std::vector<std::string_view> tokens_;  // by id; a null data() is a gap
  std::vector<std::unique_ptr<char[]>> chunks_;
  size_t chunk_used_ = 0;
  size_t chunk_bytes_ = 0;
  size_t count_ = 0;
  size_t longest_ = 0;
};

}  // namespace coluber
