// SPDX-License-Identifier: Apache-2.0
//
// The "model" of a tokenizer.json: pieces of text to ids. A Model owns its vocabulary, is immutable after loading and
// thread-safe: whatever an encoding run writes lies in the Scratch that the caller passes (one run at a time uses a
// Scratch).
#pragma once

#include <memory>
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

// Reads {"token": id, ...} under "vocab"; refuses ids that are negative, too high or used twice.
void load_vocab(const Component& component, Vocab& vocab);
// "<0x0A>" and its like.
std::string byte_token(unsigned char byte);

}  // namespace coluber
