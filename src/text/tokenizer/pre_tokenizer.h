// SPDX-License-Identifier: Apache-2.0
//
// The "pre_tokenizer" of a tokenizer.json: cuts a normalized text into the pieces that the model encodes one by one,
// and rewrites them (byte letters, ▁). Immutable after loading, thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/tokenizer/component.h"
#include "text/tokenizer/scanner.h"

namespace coluber {

struct Piece {
  size_t begin = 0;
  size_t end = 0;
  bool at_origin = false;  // starts with the first character of the input
};

struct PieceList {
  std::string text;
  std::vector<Piece> pieces;  // in order, not empty, within `text`
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual Result<void> apply(PieceList& list) const = 0;

  // Where the whole pre-tokenizer is "cut with this scanner, then write byte letters", and so may run on the bytes
  // themselves.
  virtual std::optional<Scanner> byte_level_scanner() const { return std::nullopt; }
  // Whether every piece of its output consists of byte letters.
  virtual bool ends_in_byte_letters() const { return false; }
};

std::unique_ptr<PreTokenizer> load_pre_tokenizer(const Component& component, int depth = 0);

}  // namespace coluber
