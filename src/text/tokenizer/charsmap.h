// SPDX-License-Identifier: Apache-2.0
//
// SentencePiece's precompiled character map (the "Precompiled" normalizer): a double-array trie of source texts and the
// texts that replace them. It is read from outside bytes, so every step is checked against the table's bounds.
// Immutable, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace coluber {

class Charsmap {
 public:
  static Result<Charsmap> from_base64(std::string_view base64);
  static Result<Charsmap> from_bytes(std::string_view bytes);
  std::string apply(std::string_view text) const;  // valid UTF-8 in and out; as Hugging Face's tokenizers do it
  // What replaces the start of `text`, and how many bytes of it: the longest key that matches, as SentencePiece does
  // it, else one character as it is. `text` must not be empty.
  std::string_view replace_start(std::string_view text, size_t* consumed) const noexcept;

 private:
  std::optional<std::string_view> text_at(size_t start) const noexcept;
  std::optional<std::string_view> transform(std::string_view chunk) const noexcept;
  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace coluber
