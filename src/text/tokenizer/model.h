// SPDX-License-Identifier: Apache-2.0
//
// The "model" of a tokenizer.json: pieces of text to ids. A Model owns its vocabulary, is immutable after loading and
// thread-safe: whatever an encoding run writes lies in the Scratch that the caller passes (one run at a time uses a
// Scratch).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/tokenizer/component.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/vocab.h"
#include "text/tokenizer/word_cache.h"

namespace coluber {

struct Scratch {
  WordCache cache;
  std::vector<int32_t> word_ids;
  std::vector<int32_t> previous;
  std::vector<int32_t> next;
  std::vector<uint64_t> heap_ranks;
  std::vector<double> scores;
  std::vector<int32_t> starts;
  std::string letters;
};

class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of every piece of `text`. Fails where a character has no token and there is no unknown token.
  virtual Result<void> encode(std::string_view text, std::span<const Piece> pieces, Scratch& scratch,
                              std::vector<int32_t>& ids) const = 0;
  // Where the model can work on bytes that stand for byte letters: encodes the pieces that `scanner` cuts. False where
  // it cannot.
  virtual bool can_encode_bytes() const { return false; }
  virtual Result<void> encode_bytes(std::string_view text, const Scanner& scanner, Scratch& scratch,
                                    std::vector<int32_t>& ids) const;
  virtual std::string_view kind() const = 0;

  const Vocab& vocab() const noexcept { return vocab_; }

 protected:
  Vocab vocab_;
};

std::unique_ptr<Model> load_model(const Component& component);

// The kinds, each in its own file.
std::unique_ptr<Model> load_bpe(const Component& component);
std::unique_ptr<Model> load_unigram(const Component& component);
std::unique_ptr<Model> load_word_piece(const Component& component);
std::unique_ptr<Model> load_word_level(const Component& component);

// The same from parts in memory, for formats that are no tokenizer.json.
struct BpeParts {
  Vocab vocab;
  // Of those tokens, by id, a pair of neighbours becomes one wherever its text is one, that of the lowest rank first.
  // kNoMerge: the token is never joined nor made.
  std::vector<uint32_t> ranks;
  std::vector<int32_t> fixed;  // tokens that are found before anything is joined: at every place the longest
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a whole piece that is a token is taken as it is
  static constexpr uint32_t kNoMerge = UINT32_MAX;
};
std::unique_ptr<Model> make_bpe(BpeParts parts);

// Sums of scores are kept in single precision, as SentencePiece keeps them: ties fall as there.
struct UnigramParts {
  Vocab vocab;
  std::vector<double> scores;    // by id
  std::vector<bool> is_matched;  // by id: found in texts
  double unknown_score = 0;      // of a character that no token has
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;
};
std::unique_ptr<Model> make_unigram(UnigramParts parts);

// The longest token that matches the bytes, from left to right; `bytes` are what the tokens stand for, by id (empty:
// never found in a text). The vocabulary spells them in byte letters.
std::unique_ptr<Model> make_longest_match(const std::vector<std::string>& bytes, Vocab vocab);

// Reads {"token": id, ...} under "vocab"; refuses ids that are negative, too high or used twice.
void load_vocab(const Component& component, Vocab& vocab);
// "<0x0A>" and its like.
std::string byte_token(unsigned char byte);

}  // namespace coluber
