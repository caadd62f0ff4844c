// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers that come without a tokenizer.json: what their files say, as the parts that a Tokenizer is made of. Each
// reader checks its file and throws Error(kInvalidData) with the place; `source` names the file in messages. Used only
// while loading.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/stored_vocabulary.h"

namespace coluber {

struct ForeignTokenizer {
  std::unique_ptr<Model> model;
  std::unique_ptr<Normalizer> normalizer;
  Json components{Json::Object{}};  // "pre_tokenizer" and "decoder" as a tokenizer.json spells them
  std::vector<std::pair<int32_t, AddedToken>> added;
  int32_t hidden_special = -1;  // a special token that no text spells; -1: none
  bool byte_level = false;      // tokens are spelled in byte letters
  std::string bos_token, eos_token, unk_token;
};

// RWKV World: lines of an id, a Python literal of the token's text or bytes, and its length in bytes.
ForeignTokenizer read_world_vocabulary(std::string_view text, const std::string& source);
// The same tokens in a GGUF file, as the inside of literals of bytes; whoever calls checked it.
ForeignTokenizer read_world_vocabulary(const StoredVocabulary& vocabulary, const std::string& source);
// SentencePiece's tokenizer.model, a protocol buffer. `config`: tokenizer_config.json, null where there is none.
ForeignTokenizer read_sentencepiece(std::string_view bytes, const Json* config, const std::string& source);
// What a tokenizer.model holds, by id, for who writes it in another format; checked as above.
struct SentencePieces {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int64_t> types;  // StoredTokenType: the numbers are the same
  bool is_bpe = false, add_dummy_prefix = true, remove_extra_spaces = true;
};
SentencePieces read_sentencepieces(std::string_view bytes, const std::string& source);
// The same pieces and scores in a GGUF file; whoever calls checked it.
ForeignTokenizer read_sentencepiece(const StoredVocabulary& vocabulary, const std::string& source);
// tiktoken's ranks: lines of a token in base64 and its rank.
ForeignTokenizer read_tiktoken(std::string_view text, const Json* config, const std::string& source);
// Whether the bytes are tiktoken's ranks; files of that kind are called tokenizer.model too.
bool looks_like_tiktoken(std::string_view bytes) noexcept;

}  // namespace coluber
