// SPDX-License-Identifier: Apache-2.0
#include "engine/answer_grammars.h"

#include <algorithm>

#include "base/thread_time.h"

namespace coluber {
namespace {

// A form can be short and compile at once, and yet take longer with every token (a repetition of what is ambiguous,
// say).
class GrammarConstraint : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const CompiledGrammar> grammar, const GrammarLimits& limits)
      : grammar_(std::move(grammar)), matcher_(grammar_->matcher()), limits_(limits) {}

  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<GrammarConstraint>(grammar_, limits_);
  }
  void fill_mask(std::span<uint32_t> bitmask) override {
    const double begin = thread_cpu_seconds();
    matcher_->fill_mask(bitmask);
    count(begin);
  }
  bool accept(int32_t token) override {
    const double begin = thread_cpu_seconds();
    const bool fine = matcher_->accept(token);
    ++num_tokens_;
    count(begin);
    return fine;
  }
  bool is_terminated() const override { return matcher_->is_terminated(); }

 private:
  void count(double begin) {
    seconds_ += thread_cpu_seconds() - begin;
    const double limit =
        limits_.max_matching_seconds + static_cast<double>(num_tokens_) * limits_.matching_seconds_a_token;
    if (seconds_ > limit)
      throw make_error(ErrorCode::kInvalidArgument,
                       "the form of the answer has taken {:.1f} s of the processor's time for {} tokens, more than the "
                       "{:.1f} s it may; ask for a simpler one, with less that can be read in several ways",
                       seconds_, num_tokens_, limit);
  }

  std::shared_ptr<const CompiledGrammar> grammar_;
  std::unique_ptr<GrammarMatcher> matcher_;
  GrammarLimits limits_;
  int64_t num_tokens_ = 0;
  double seconds_ = 0.0;
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
  return std::make_shared<const GrammarConstraint>(*grammar, limits_);
}

Result<std::shared_ptr<const TokenConstraint>> AnswerGrammars::compile(const AskedGrammar& asked) {
  auto constraint = compile(asked.spec);
  if (constraint) return constraint;
  const Failure& failure = constraint.error();
  return tl::unexpected(Failure{
      failure.code, fmt::format("no answer can be held to '{}': {}", asked.param, failure.message), asked.param});
}

}  // namespace coluber
