// SPDX-License-Identifier: Apache-2.0
//
// A tokenizer as a GGUF file stores it: lists by id and the names of what the lists do not say. Views of the file,
// which must outlive the loading; nothing of GGUF itself. `Tokenizer::from_vocabulary` checks it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"

namespace coluber {

enum class StoredTokenType : int64_t { kUndefined = 0, kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct StoredVocabulary {
  // "gpt2": byte-level BPE; "llama", "t5": SentencePiece's BPE and Unigram; "rwkv": RWKV World
  std::string_view model;
  std::string_view split;  // of gpt2: the name of the expressions that cut a text
  std::span<const std::string_view> tokens;
  std::span<const std::string_view> merges;  // of gpt2: "a b", the likeliest first
  std::span<const double> scores;            // of llama and t5, by id
  std::span<const int64_t> types;            // StoredTokenType by id; empty: all are normal
  std::optional<int64_t> bos_id, eos_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_eos;  // none: as the model and `split` do by default
  bool add_space_prefix = true;          // of llama and t5
  bool remove_extra_spaces = false;      // of llama and t5
  std::span<const int64_t> charsmap;     // of t5: the bytes of SentencePiece's table of texts to be replaced

  // What begins or ends texts is used, whatever its type says.
  StoredTokenType type_of(size_t id) const {
    const auto type = types.empty() ? StoredTokenType::kNormal : static_cast<StoredTokenType>(types[id]);
    const bool is_bound = bos_id == static_cast<int64_t>(id) || eos_id == static_cast<int64_t>(id);
    return type == StoredTokenType::kUnused && is_bound ? StoredTokenType::kControl : type;
  }
};

// The name under which `split` stands for these expressions, one after the other; one whose tokenizers also bring texts
// into NFC or ignore merges as asked comes first. Empty where there is none.
std::string_view find_split_name(std::span<const std::string> patterns, bool composes, bool ignore_merges);

// The lists of a gpt2 vocabulary as the tokenizer.json that says the same, but for tokens around a text. Throws as
// Tokenizer::from_vocabulary does.
Json tokenizer_json_of(const StoredVocabulary& vocabulary, const std::string& source);

}  // namespace coluber
