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
  std::string apply(std::string_view text) const;  // valid UTF-8 in and out

 private:
  std::optional<std::string_view> transform(std::string_view chunk) const noexcept;
  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace coluber
