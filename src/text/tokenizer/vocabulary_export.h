// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers from their files into the lists that a GGUF file stores, and back into files: the opposite of
// stored_vocabulary.h. What comes out is tried against what went in on a text that has a bit of everything; a tokenizer
// that cannot be said the other way is refused. Used while a model is converted; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/tokenizer/stored_vocabulary.h"

namespace coluber {

struct ExportedVocabulary {
  std::string model, split;
  std::vector<std::string> tokens, merges;
  std::vector<double> scores;
  std::vector<int64_t> types;  // StoredTokenType
  std::optional<int64_t> bos_id, eos_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_spaces;
};

// From a tokenizer.json (with the tokenizer_config.json beside it), a rwkv_vocab_v*.txt or a tokenizer.model; the lists
// are filled up to `vocab_size` tokens. Throws Error(kUnsupported) for a tokenizer that GGUF has no words for.
ExportedVocabulary export_vocabulary(const std::string& path, int64_t vocab_size);

// A file that says what the lists say, and what a tokenizer_config.json beside it must say.
struct TokenizerFiles {
  std::string name, content;
  Json config;
};
TokenizerFiles tokenizer_files(const StoredVocabulary& vocabulary, const std::string& source);

}  // namespace coluber
