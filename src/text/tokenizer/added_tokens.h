// SPDX-License-Identifier: Apache-2.0
//
// The "added_tokens" of a tokenizer.json: texts that are found before (or, where `normalized`, after) normalization and
// become one id whatever the model says. Filled while loading, then immutable and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "text/tokenizer/byte_trie.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/vocab.h"

namespace coluber {

struct AddedToken {
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = true;
  bool special = false;
  bool operator==(const AddedToken&) const = default;
};

// A part of a text: an added token, or text (id kNone) that the model is to encode.
struct AddedPart {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = Vocab::kNone;
};

class AddedTokens {
 public:
  // Gives the token its id: the model's, where it knows the text, else the next one behind all others. An empty text
  // and an exact repetition are ignored. Returns the id, kNone where ignored.
  int32_t add(AddedToken token, const Vocab& model);
  // The same with an id that the file gives: for formats whose vocabulary has no place for these tokens. False where
  // the id or the text belongs to another token; `may_rename`: the id may belong to one of the model's, which goes by
  // this name then.
  bool add_at(int32_t id, AddedToken token, const Vocab& model, bool may_rename = false);
  // Call once, after the last `add`.
  void finish(const Normalizer* normalizer);

  // The parts of `text` in order. `normalized` chooses the tokens that are found after normalization.
  void find(std::string_view text, bool normalized, std::vector<AddedPart>& parts) const;
  bool any(bool normalized) const noexcept { return matcher(normalized).any; }

  const std::unordered_map<int32_t, AddedToken>& by_id() const noexcept { return by_id_; }
  // The text that decoders get for an added token: its content, normalized where the token is. Call after `finish`.
  const std::string& decoded_text(int32_t id) const { return decoded_.at(id); }
  int32_t id_of(const std::string& content) const noexcept;
  bool is_special(const std::string& content) const noexcept { return special_.contains(content); }

 private:
  void place(int32_t id, AddedToken token);
  struct Matcher {
    ByteTrie trie;
    bool starts[256] = {};
    bool any = false;
  };
  const Matcher& matcher(bool normalized) const noexcept { return normalized ? normalized_ : plain_; }
  void build(Matcher& matcher, bool normalized, const Normalizer* normalizer);

  std::vector<AddedToken> tokens_;  // in order
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, AddedToken> by_id_;
  std::unordered_set<std::string> special_;
  std::unordered_map<int32_t, std::string> decoded_;
  int32_t highest_id_ = -1;
  Matcher plain_;
  Matcher normalized_;
};

}  // namespace coluber
