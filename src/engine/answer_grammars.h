// SPDX-License-Identifier: Apache-2.0
//
// Grammars for the answers of one model: its vocabulary, read from the tokenizer when the first is asked for, and
// compiled grammars as the TokenConstraint that a request takes. Thread-safe; borrows the tokenizer.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "coluber/engine.h"
#include "text/grammar/asked_grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber {

class AnswerGrammars {
 public:
  // `markers`: special tokens that a structure (GrammarKind::kStructure) may have, as those around calls of tools. No
  // other grammar allows a special token.
  AnswerGrammars(const Tokenizer& tokenizer, int64_t vocab_size, std::span<const int32_t> end_ids,
                 std::vector<std::string> markers = {}, GrammarLimits limits = {});

  Result<std::shared_ptr<const TokenConstraint>> compile(const GrammarSpec& spec);
  // The same; a failure names the field or flag that asked for it.
  Result<std::shared_ptr<const TokenConstraint>> compile(const AskedGrammar& asked);

 private:
  GrammarVocabulary vocabulary(bool with_markers) const;

  const Tokenizer& tokenizer_;
  int64_t vocab_size_;
  std::vector<int32_t> end_ids_;
  std::vector<std::string> markers_;
  GrammarLimits limits_;
  std::mutex mutex_;
  std::shared_ptr<GrammarCompiler> compilers_[2];  // with markers: the second
};

}  // namespace coluber
