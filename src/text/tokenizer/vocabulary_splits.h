// SPDX-License-Identifier: Apache-2.0
//
// How byte-level vocabularies that are stored without their tokenizer.json cut texts: expressions by the names that
// GGUF files have for them (`tokenizer.ggml.pre`). Data alone. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coluber {

// Of Kimi's tokenizer: Chinese characters apart; words of any script with one sign before and an English ending behind;
// numbers of up to three digits; signs; line ends; spaces.
inline constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Normalizers are not in such a file either; these are of the published tokenizers.
struct VocabularySplit {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // one after the other
  bool composes = false;                   // texts are brought into NFC
  bool ignore_merges = false;
  bool add_bos = false;
};

const std::vector<VocabularySplit>& vocabulary_splits();
// Null where the name is not known; an empty one is of files from before there were names.
const VocabularySplit* find_vocabulary_split(std::string_view name);
std::string known_split_names();  // "llama-bpe, llama3, ..."

}  // namespace coluber
