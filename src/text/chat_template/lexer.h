// SPDX-License-Identifier: Apache-2.0
//
// Template text to tokens, with the white-space rules of a chat template: trim_blocks, lstrip_blocks, `-` and `+`
// marks, one trailing newline dropped, comments dropped, {% raw %} kept as text. Throws Fault(kSyntax) with the line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coluber::jinja {

enum class TokenKind : uint8_t {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 0;
  std::string text;  // data, name, the decoded string, the operator's characters
  int64_t integer = 0;
  double real = 0;

  bool is(std::string_view op) const noexcept { return kind == TokenKind::kOperator && text == op; }
  bool is_name(std::string_view name) const noexcept { return kind == TokenKind::kName && text == name; }
};

// As a message shows it.
std::string describe(const Token& token);

// `source` is well-formed UTF-8. The last token is kEnd.
std::vector<Token> tokenize(std::string_view source);

}  // namespace coluber::jinja
