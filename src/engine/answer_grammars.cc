// SPDX-License-Identifier: Apache-2.0
#include "engine/answer_grammars.h"

#include <algorithm>

namespace coluber {
namespace {

class GrammarConstraint : public TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<const CompiledGrammar> grammar)
      : grammar_(std::move(grammar)), matcher_(grammar_->matcher()) {}

  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<GrammarConstraint>(grammar_); }
  void fill_mask(std::span<uint32_t> bitmask) override { matcher_->fill_mask(bitmask); }
  bool accept(int32_t token) override { return matcher_->accept(token); }
  bool is_terminated() const override { return matcher_->is_terminated(); }

 private:
  std::shared_ptr<const CompiledGrammar> grammar_;
  std::unique_ptr<GrammarMatcher> matcher_;
};

}  // namespace

AnswerGrammars::AnswerGrammars(const Tokenizer& tokenizer, int64_t vocab_size, std::span<const int32_t> end_ids,
                               std::vector<std::string> markers, GrammarLimits limits)
    : tokenizer_(tokenizer),
      vocab_size_(vocab_size),
      end_ids_(end_ids.begin(), end_ids.end()),
      markers_(std::move(markers)),
      limits_(limits) {
  std::erase_if(end_ids_, [vocab_size](int32_t id) { return id < 0 || id >= vocab_size; });
}

GrammarVocabulary AnswerGrammars::vocabulary(bool with_markers) const {
  GrammarVocabulary made;
  made.end_ids = end_ids_;
  made.tokens.resize(static_cast<size_t>(vocab_size_));
  for (int32_t id = 0; id < vocab_size_; ++id) {
    if (!tokenizer_.contains(id) || std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end()) continue;
    std::string bytes = tokenizer_.token_bytes(id);
    const bool marker = with_markers && std::find(markers_.begin(), markers_.end(), bytes) != markers_.end();
    if (marker || !tokenizer_.is_special(id)) made.tokens[static_cast<size_t>(id)] = std::move(bytes);
  }
  return made;
}

Result<std::shared_ptr<const TokenConstraint>> AnswerGrammars::compile(const GrammarSpec& spec) {
  const bool with_markers = spec.kind == GrammarKind::kStructure;
  std::shared_ptr<GrammarCompiler> compiler;
  try {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<GrammarCompiler>& kept = compilers_[with_markers ? 1 : 0];
    if (!kept) kept = make_grammar_compiler(vocabulary(with_markers), limits_);
    compiler = kept;
  } catch (const Error& error) {
    return fail(error.code(), "{}", error.what());
  }
  const auto grammar = compiler->compile(spec);
  if (!grammar) return tl::unexpected(grammar.error());
  return std::make_shared<const GrammarConstraint>(*grammar);
}

Result<std::shared_ptr<const TokenConstraint>> AnswerGrammars::compile(const AskedGrammar& asked) {
  auto constraint = compile(asked.spec);
  if (constraint) return constraint;
  const Failure& failure = constraint.error();
  return tl::unexpected(Failure{
      failure.code, fmt::format("no answer can be held to '{}': {}", asked.param, failure.message), asked.param});
}

}  // namespace coluber
