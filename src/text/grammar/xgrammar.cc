// SPDX-License-Identifier: Apache-2.0
#include <dlpack/dlpack.h>
#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <variant>

#include "base/log.h"
#include "text/grammar/grammar.h"
#include "text/grammar/spec_checks.h"
#include "text/grammar/structure.h"

namespace xgrammar {

namespace {

// What the library warned of in the course of a compilation: parts of a spec that it would leave out.
thread_local std::string* heard_warnings = nullptr;
constexpr int kWarning = 2;

}  // namespace

// The library's hooks for its messages, whose names are its own (NOLINTBEGIN(readability-identifier-naming)); declared
// in a header of its sources.
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (heard_warnings == nullptr || level != kWarning) {
    coluber::log_debug("xgrammar: {}", message);
  } else if (heard_warnings->empty()) {
    *heard_warnings = message;
  }
}

// NOLINTEND(readability-identifier-naming)

std::string take_warnings(const std::function<void()>& work) {
  std::string warnings;
  heard_warnings = &warnings;
  try {
    work();
  } catch (...) {
    heard_warnings = nullptr;
    throw;
  }
  heard_warnings = nullptr;
  return warnings;
}

}  // namespace xgrammar

namespace coluber {
namespace {

constexpr int kMaxCompilations = 4;  // at once; also those that nobody waits for any more
constexpr int kMaxWhitespace = 24;   // between two parts of JSON: a model may not go on with blanks for ever
constexpr size_t kShownBytes = 400;

std::string shortened(std::string message) {
  while (!message.empty() && (message.back() == '\n' || message.back() == ' ')) message.pop_back();
  if (message.size() > kShownBytes) message = message.substr(0, kShownBytes) + "...";
  return message;
}

class Matcher : public GrammarMatcher {
 public:
  Matcher(xgrammar::GrammarMatcher matcher, int vocab_size) : matcher_(std::move(matcher)), vocab_size_(vocab_size) {}

  std::unique_ptr<GrammarMatcher> fork() const override {
    return std::make_unique<Matcher>(matcher_.Fork(), vocab_size_);
  }

  void fill_mask(std::span<uint32_t> bitmask) override {
    int64_t shape[1] = {xgrammar::GetBitmaskSize(vocab_size_)};
    COLUBER_CHECK(static_cast<int64_t>(bitmask.size()) >= shape[0], "{} words for {} tokens", bitmask.size(),
                  vocab_size_);
    DLTensor tensor{};
    tensor.data = bitmask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = shape;
    matcher_.FillNextTokenBitmask(&tensor);
  }

  bool accept(int32_t token) override {
    return token >= 0 && token < vocab_size_ && !matcher_.IsTerminated() && matcher_.AcceptToken(token);
  }
  void rollback(int num_tokens) override { matcher_.Rollback(num_tokens); }
  bool is_terminated() const override { return matcher_.IsTerminated(); }

 private:
  xgrammar::GrammarMatcher matcher_;
  int vocab_size_;
};

class Compiled : public CompiledGrammar {
 public:
  explicit Compiled(xgrammar::CompiledGrammar grammar) : grammar_(std::move(grammar)) {}
  std::unique_ptr<GrammarMatcher> matcher() const override {
    return std::make_unique<Matcher>(xgrammar::GrammarMatcher(grammar_), grammar_.GetTokenizerInfo().GetVocabSize());
  }

 private:
  xgrammar::CompiledGrammar grammar_;
};

using Outcome = Result<std::shared_ptr<const CompiledGrammar>>;

class Compiler : public GrammarCompiler, public std::enable_shared_from_this<Compiler> {
 public:
  Compiler(GrammarVocabulary vocabulary, const GrammarLimits& limits)
      : limits_(limits),
        compiler_(xgrammar::TokenizerInfo(vocabulary.tokens, xgrammar::VocabType::RAW,
                                          static_cast<int>(vocabulary.tokens.size()), vocabulary.end_ids),
                  1, true, limits.max_cached_bytes) {}

  // The library cannot be stopped: what takes too long goes on alone, and takes one of few places until it ends.
  Outcome compile(const GrammarSpec& spec) override {
    if (auto fine = check_grammar_spec(spec, limits_); !fine) return tl::unexpected(fine.error());
    if (running_.fetch_add(1) >= kMaxCompilations) {
      --running_;
      return fail(ErrorCode::kResourceExhausted, "{} grammars are being compiled; come back a little later",
                  kMaxCompilations);
    }
    std::promise<Outcome> promise;
    std::future<Outcome> outcome = promise.get_future();
    std::thread([self = shared_from_this(), spec, promise = std::move(promise)]() mutable {
      Outcome made = self->compile_here(spec);
      --self->running_;
      promise.set_value(std::move(made));
    }).detach();
    const std::chrono::duration<double> limit(limits_.max_seconds);
    if (limits_.max_seconds > 0.0 && outcome.wait_for(limit) == std::future_status::ready) return outcome.get();
    return fail(ErrorCode::kInvalidArgument, "it takes more than {} s to compile; make it simpler",
                limits_.max_seconds);
  }

 private:
  Outcome compile_here(const GrammarSpec& spec) {
    try {
      std::optional<xgrammar::CompiledGrammar> grammar;
      const std::string warnings = xgrammar::take_warnings([&] { grammar = compile_with_library(spec); });
      if (!warnings.empty()) return fail(ErrorCode::kUnsupported, "{}", shortened(warnings));
      return std::make_shared<const Compiled>(std::move(*grammar));
    } catch (const std::exception& error) {
      return fail(ErrorCode::kInvalidArgument, "{}", shortened(error.what()));
    }
  }

  xgrammar::CompiledGrammar compile_with_library(const GrammarSpec& spec) {
    switch (spec.kind) {
      case GrammarKind::kJsonObject:
        return schema(R"({"type":"object","additionalProperties":true})");
      case GrammarKind::kJsonSchema:
        return schema(spec.text);
      case GrammarKind::kRegex:
        return compiler_.CompileRegex(spec.text);
      case GrammarKind::kEbnf:
        return compiler_.CompileGrammar(spec.text);
      case GrammarKind::kChoice:
        return compiler_.CompileGrammar(rules_of_choices(spec.choices));
      case GrammarKind::kStructure:
        break;
    }
    return compiler_.CompileStructuralTag(spec.text);
  }

  xgrammar::CompiledGrammar schema(const std::string& text) {
    return compiler_.CompileJSONSchema(text, true, std::nullopt, std::nullopt, true, kMaxWhitespace);
  }

  GrammarLimits limits_;
  xgrammar::GrammarCompiler compiler_;
  std::atomic<int> running_{0};
};

}  // namespace

bool has_grammars() noexcept { return true; }

std::shared_ptr<GrammarCompiler> make_grammar_compiler(GrammarVocabulary vocabulary, const GrammarLimits& limits) {
  if (vocabulary.end_ids.empty())
    throw Error(ErrorCode::kUnsupported,
                "structured output needs a model with a token that ends its answers, and this one has none");
  return std::make_shared<Compiler>(std::move(vocabulary), limits);
}

}  // namespace coluber
