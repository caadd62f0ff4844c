// SPDX-License-Identifier: Apache-2.0
//
// What Replace and Split look for: a literal text, an expression, or an expression that a hand-written scanner stands
// for. Immutable, thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/component.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/scanner.h"

namespace coluber {

class Pattern {
 public:
  // {"String": ...} or {"Regex": ...} under `key`. Throws Error with the place where the expression is not valid.
  Pattern(const Component& component, std::string_view key);
  static Pattern regex(std::string_view expression);
  static Pattern literal(std::string_view text);

  Result<void> find_all(std::string_view text, std::vector<Span>& matches) const;
  const std::optional<Scanner>& scanner() const noexcept { return scanner_; }
  bool is_literal() const noexcept { return regex_ == nullptr && !scanner_; }
  const std::string& literal_text() const noexcept { return literal_; }

 private:
  Pattern() = default;
  std::string literal_;
  std::shared_ptr<const Regex> regex_;
  std::optional<Scanner> scanner_;
};

}  // namespace coluber
