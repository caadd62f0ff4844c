// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/pattern.h"

namespace coluber {

Pattern::Pattern(const Component& component, std::string_view key) {
  const Component found = component.child(key);
  if (found.has("String")) {
    literal_ = found.text("String");
    if (literal_.empty()) *this = regex("");
    return;
  }
  if (!found.has("Regex")) found.refuse("expected {\"String\": ...} or {\"Regex\": ...}");
  const std::string& expression = found.text("Regex");
  scanner_ = find_scanner(expression);
  if (scanner_) return;
  auto compiled = Regex::compile(expression);
  if (!compiled) found.refuse(compiled.error().message);
  regex_ = std::move(*compiled);
}

Pattern Pattern::regex(std::string_view expression) {
  Pattern pattern;
  pattern.regex_ = value_or_throw(Regex::compile(expression));
  return pattern;
}

Pattern Pattern::literal(std::string_view text) {
  if (text.empty()) return regex("");
  Pattern pattern;
  pattern.literal_.assign(text);
  return pattern;
}

Result<void> Pattern::find_all(std::string_view text, std::vector<Span>& matches) const {
  if (regex_ != nullptr) return regex_->find_all(text, matches);
  matches.clear();
  if (scanner_) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = scanner_->next(text, at);
      matches.push_back({at, end});
      at = end;
    }
    return {};
  }
  for (size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, at + literal_.size())) {
    matches.push_back({at, at + literal_.size()});
  }
  return {};
}

}  // namespace coluber
