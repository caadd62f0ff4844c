// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <chrono>

#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kDepthLimit = 1'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kJitStackBytes = 8 << 20;
constexpr auto kTimeLimit = std::chrono::seconds(10);
constexpr size_t kMatchesBetweenClockReads = 64;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return "unknown error";
  return reinterpret_cast<const char*>(buffer);
}

struct MatchDataDelete {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

struct JitStackDelete {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

struct ContextDelete {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

using MatchContext = std::unique_ptr<pcre2_match_context, ContextDelete>;

MatchContext make_context() {
  MatchContext context(pcre2_match_context_create(nullptr));
  COLUBER_CHECK(context != nullptr, "out of memory for a match context");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_depth_limit(context.get(), kDepthLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  return context;
}

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Compiled() { pcre2_code_free(code); }

  int match(std::string_view text, size_t at, pcre2_match_data* data, MatchContext& context,
            std::unique_ptr<pcre2_jit_stack, JitStackDelete>& stack) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    if (jit) {
      int found = pcre2_jit_match(code, subject, text.size(), at, 0, data, context.get());
      if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
      if (stack == nullptr) {  // the 32 KiB on the machine's stack did not do
        stack.reset(pcre2_jit_stack_create(64 * 1024, kJitStackBytes, nullptr));
        if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
        found = pcre2_jit_match(code, subject, text.size(), at, 0, data, context.get());
        if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
      }
    }
    return pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context.get());
  }
};

Regex::~Regex() = default;

Result<std::shared_ptr<const Regex>> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return fail(ErrorCode::kInvalidData, "the expression has {} bytes, the limit is {}", pattern.size(),
                kMaxPatternBytes);
  }
  auto translated = translate_pattern(pattern);
  if (!translated) return tl::unexpected(translated.error());
  struct CompileContextDelete {
    void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  };
  const std::unique_ptr<pcre2_compile_context, CompileContextDelete> context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 200);
  int code = 0;
  PCRE2_SIZE offset = 0;
  // Texts are made valid UTF-8 before they come here, so PCRE2_MATCH_INVALID_UTF, which would skip bytes, is not
  // needed.
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context.get());
  if (compiled == nullptr) {
    return fail(ErrorCode::kInvalidData, "the expression {:?} is not valid: {} (at byte {} of its translation {:?})",
                pattern, message_of(code), offset, *translated);
  }
  std::shared_ptr<Regex> regex(new Regex());
  regex->pattern_.assign(pattern);
  regex->compiled_ = std::make_unique<Compiled>();
  regex->compiled_->code = compiled;
  regex->compiled_->jit = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
  return std::shared_ptr<const Regex>(std::move(regex));
}

Result<void> Regex::find_all(std::string_view text, std::vector<Span>& matches) const {
  matches.clear();
  const std::unique_ptr<pcre2_match_data, MatchDataDelete> data(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr));
  MatchContext context = make_context();
  std::unique_ptr<pcre2_jit_stack, JitStackDelete> stack;
  const auto started = std::chrono::steady_clock::now();
  size_t at = 0;
  size_t rounds = 0;
  size_t last_end = std::string_view::npos;
  while (at <= text.size()) {
    if (++rounds % kMatchesBetweenClockReads == 0 && std::chrono::steady_clock::now() - started > kTimeLimit) {
      return fail(ErrorCode::kInvalidArgument, "the expression {:?} took more than {} s on a text of {} bytes",
                  pattern_, kTimeLimit.count(), text.size());
    }
    const int found = compiled_->match(text, at, data.get(), context, stack);
    if (found == PCRE2_ERROR_NOMATCH) return {};
    if (found < 0) {
      return fail(ErrorCode::kInvalidArgument, "the expression {:?} gave up on a text of {} bytes: {}", pattern_,
                  text.size(), message_of(found));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    const Span match{ends[0], ends[1]};
    if (match.begin > match.end || match.end > text.size()) {
      return fail(ErrorCode::kInvalidArgument,
                  "the expression {:?} matched backwards; \\K in a lookaround is not supported", pattern_);
    }
    const bool empty = match.begin == match.end;
    if (!empty || match.begin != last_end) {
      matches.push_back(match);
      last_end = match.end;
    }
    if (!empty) {
      at = std::max(match.end, at);
    } else if (match.end >= text.size()) {
      return {};
    } else {
      at = match.end + utf8_char_bytes(text[match.end]);
    }
  }
  return {};
}

}  // namespace coluber
