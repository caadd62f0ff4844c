// SPDX-License-Identifier: Apache-2.0
//
// A tokenizer as a GGUF file stores it: lists by id and the names of what the lists do not say. Views of the file,
// which must outlive the loading; nothing of GGUF itself. `Tokenizer::from_vocabulary` checks it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace coluber {

enum class StoredTokenType : int64_t { kUndefined = 0, kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct StoredVocabulary {
  std::string_view model;  // "gpt2": byte-level BPE; "llama": SentencePiece's BPE
  std::string_view split;  // of gpt2: the name of the expressions that cut a text
  std::span<const std::string_view> tokens;
  std::span<const std::string_view> merges;  // of gpt2: "a b", the likeliest first
  std::span<const double> scores;            // of llama, by id
  std::span<const int64_t> types;            // StoredTokenType by id; empty: all are normal
  std::optional<int64_t> bos_id, eos_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_eos;  // none: as the model and `split` do by default
  bool add_space_prefix = true;          // of llama
  bool remove_extra_spaces = false;      // of llama

  StoredTokenType type_of(size_t id) const {
    return types.empty() ? StoredTokenType::kNormal : static_cast<StoredTokenType>(types[id]);
  }
};

}  // namespace coluber
