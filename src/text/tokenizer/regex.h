// SPDX-License-Identifier: Apache-2.0
//
// Regular expressions of tokenizer.json, which are written for Oniguruma with Ruby's syntax, on PCRE2: the pattern is
// translated (regex_translate.cc) and compiled with its JIT. Matching is bounded in steps, memory and time, so that
// neither a hostile pattern nor a hostile text hangs. A Regex is immutable; matching is thread-safe. regex.cc is the
// only file that sees PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace coluber {

struct Span {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const Span&) const = default;
};

// The pattern as PCRE2 (with UTF, UCP, MULTILINE) reads it. Fails where a construct has no counterpart.
Result<std::string> translate_pattern(std::string_view pattern);

class Regex {
 public:
  static Result<std::shared_ptr<const Regex>> compile(std::string_view pattern);
  ~Regex();

  // All matches from left to right in valid UTF-8, as Oniguruma's search loop gives them: an empty match right behind
  // the last match is skipped. Fails (kInvalidArgument) where a limit is reached.
  Result<void> find_all(std::string_view text, std::vector<Span>& matches) const;
  const std::string& pattern() const noexcept { return pattern_; }

 private:
  struct Compiled;
  Regex() = default;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace coluber
