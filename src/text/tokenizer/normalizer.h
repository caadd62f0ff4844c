// SPDX-License-Identifier: Apache-2.0
//
// The "normalizer" of a tokenizer.json: text to text before it is split. Immutable after loading, thread-safe.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "text/tokenizer/component.h"

namespace coluber {

inline constexpr int kMaxComponentDepth = 16;  // sequences in sequences

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Rewrites valid UTF-8. `at_origin` (the text starts with the first character of the input) is cleared where the
  // start is cut off. Fails where an expression reaches its limits.
  virtual Result<void> apply(std::string& text, bool& at_origin) const = 0;
};

// Throws Error for an unknown kind or a bad value, with its place.
std::unique_ptr<Normalizer> load_normalizer(const Component& component, int depth = 0);

// The bytes of a text as the printable letters of byte-level vocabularies: appends them, and the way back (false where
// a character is none of those letters).
void append_byte_letters(std::string& out, std::string_view bytes);
bool append_letter_bytes(std::string& out, std::string_view letters);

}  // namespace coluber
