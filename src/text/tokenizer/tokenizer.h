// SPDX-License-Identifier: Apache-2.0
//
// Text to token ids and back, as a published `tokenizer.json` says (with the facts of `tokenizer_config.json` beside
// it): the same ids and the same text as Hugging Face's `tokenizers`. Or as the files of others say that come without
// one: RWKV World's vocabulary, SentencePiece's tokenizer.model, tiktoken's ranks (Kimi). It renders no chat templates
// and knows nothing of models. A Tokenizer is immutable after `load`; every method is const and may be called from any
// number of threads at once (working memory comes from a pool inside). A DetokenizeStream belongs to one sequence and
// one thread, and must not outlive its Tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "coluber/chat_text.h"

namespace coluber {

class DecodeChain;
class DecodeStream;
struct StoredVocabulary;

class Tokenizer {
 public:
  // `path` is a tokenizer.json or the folder that holds one, a rwkv_vocab_v*.txt, a tokenizer.model or a
  // tiktoken.model. Throws Error: kNotFound, kInvalidData (damaged),
  // kUnsupported (a kind of component that is not known; the message names the place and the known ones).
  static std::unique_ptr<Tokenizer> load(const std::string& path);
  // From texts in memory; `source` names the first in messages. `config_json` may be empty.
  static std::unique_ptr<Tokenizer> from_json(std::string_view tokenizer_json, std::string_view config_json,
                                              const std::string& source);
  // From the bytes of a file that is no tokenizer.json; the name at the end of `source` and the bytes tell its kind.
  static std::unique_ptr<Tokenizer> from_file_bytes(std::string_view bytes, std::string_view config_json,
                                                    const std::string& source);
  // From the lists of a GGUF file. kUnsupported names a kind, or a way to cut texts, that is not known.
  static std::unique_ptr<Tokenizer> from_vocabulary(const StoredVocabulary& vocabulary, const std::string& source);
  ~Tokenizer();

  // Bytes that are not UTF-8 are read as U+FFFD, as Python's errors="replace" does; `is_valid_utf8` tells beforehand.
  // Fails (kInvalidArgument) where the text has a character that the model cannot express and no unknown token is set,
  // or where the split expression needs more steps on this text than is allowed.
  Result<std::vector<int32_t>> encode(std::string_view text, bool add_special_tokens = true) const;
  // The same, appended to `ids`.
  Result<void> encode_into(std::string_view text, bool add_special_tokens, std::vector<int32_t>& ids) const;
  // Special tokens are not read in the ranges that somebody `typed` (in order, apart from each other): there they are
  // text like any other. No special tokens are added.
  Result<std::vector<int32_t>> encode_typed(std::string_view text, std::span<const TextRange> typed) const;
  // Ids that are not in the vocabulary are left out, as in Hugging Face; `contains` tells beforehand. The text is valid
  // UTF-8.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  int64_t vocab_size() const noexcept;  // distinct tokens, added ones included
  int32_t max_id() const noexcept;      // the highest id that is in use; -1 in an empty vocabulary
  bool contains(int32_t id) const noexcept;
  bool is_special(int32_t id) const noexcept;
  std::optional<int32_t> token_to_id(std::string_view token) const noexcept;
  std::optional<std::string> id_to_token(int32_t id) const;  // as the file spells it ("Ġthe", "<0x0A>")
  // The bytes that the token stands for inside a text: byte-level letters and byte fallbacks are undone, ▁ is a space.
  std::string token_bytes(int32_t id) const;

  // From tokenizer_config.json; empty where it names none.
  const std::string& bos_token() const noexcept;
  const std::string& eos_token() const noexcept;
  const std::string& unk_token() const noexcept;
  const std::string& pad_token() const noexcept;
  std::optional<int32_t> bos_id() const noexcept;
  std::optional<int32_t> eos_id() const noexcept;

  struct Impl;

 private:
  friend class DetokenizeStream;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Ids in, text out as soon as it is certain. Never emits part of a character; all emitted text, with that of `flush`,
// equals `decode` of all ids.
class DetokenizeStream {
 public:
  explicit DetokenizeStream(const Tokenizer& tokenizer, bool skip_special_tokens = true);
  ~DetokenizeStream();
  DetokenizeStream(DetokenizeStream&&) noexcept;
  DetokenizeStream& operator=(DetokenizeStream&&) noexcept;

  std::string push(int32_t id);
  std::string flush();  // the rest; the stream is as new after it

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace coluber
