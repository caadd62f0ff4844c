// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/ascii.h"
#include "text/chat_template/fault.h"
#include "text/chat_template/python.h"
#include "text/chat_template/python_unicode.h"

namespace coluber::jinja {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kData:
      return "template text";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kString:
      return "string '" + token.text + "'";
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return "a number";
    default:
      return "'" + token.text + "'";
  }
}

namespace {

constexpr std::array<std::string_view, 6> kTwoCharOperators = {"//", "**", "==", "!=", ">=", "<="};
constexpr std::string_view kOneCharOperators = "+-/*%~[](){}><=.:|,;";

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalized(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_data();
    add(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  static std::string normalized(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        out += '\n';
      } else {
        out += source[i];
      }
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
  }

  [[noreturn]] void error(const std::string& message) const { throw Fault{FaultKind::kSyntax, line_, message}; }

  void add(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool starts(std::string_view what) const { return rest().starts_with(what); }

  // Moves on, counting lines; remembers whether the last character taken ended a line.
  void take(size_t count) {
    if (count == 0) return;
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
    line_starting_ = source_[at_ - 1] == '\n';
  }

  size_t space_size(size_t from) const {
    size_t at = from;
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(decode_char(source_, &next))) break;
      at = next;
    }
    return at - from;
  }

  // The text before a tag, less what the tag's mark and lstrip_blocks take away.
  std::string_view stripped(std::string_view text, char mark, bool variable) const {
    if (mark == '-') return strip_right(text);
    if (mark == '+' || variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t begin = newline == text.npos ? 0 : newline + 1;
    if (begin == 0 && !line_starting_) return text;
    const std::string_view tail = text.substr(begin);
    return strip_right(tail).empty() ? text.substr(0, begin) : text;
  }

  void read_data() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == source_.npos || tag + 1 >= source_.size()) {
        tag = source_.npos;
        break;
      }
      const char kind = source_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    if (tag == source_.npos) {
      add(TokenKind::kData, std::string(rest()));
      take(source_.size() - at_);
      return;
    }
    const char kind = source_[tag + 1];
    char mark = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (mark != '-' && mark != '+') mark = '\0';
    const std::string_view before = stripped(std::string_view(source_).substr(at_, tag - at_), mark, kind == '{');
    if (!before.empty()) add(TokenKind::kData, std::string(before));
    take(tag - at_);
    const int opened = line_;
    take(mark == '\0' ? 2 : 3);
    if (kind == '#') return skip_comment(opened);
    if (kind == '%' && read_raw(opened)) return;
    add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, {});
    read_tag(kind == '{', opened);
  }

  // Takes "-%}" with the space behind it, "+%}", or "%}" with one newline. False where none of them is here.
  bool take_block_end(std::string_view end, bool trim_newline) {
    const std::string with_minus = "-" + std::string(end), with_plus = "+" + std::string(end);
    if (starts(with_minus)) {
      take(with_minus.size() + space_size(at_ + with_minus.size()));
    } else if (trim_newline && starts(with_plus)) {
      take(with_plus.size());
    } else if (starts(end)) {
      const bool newline = trim_newline && at_ + end.size() < source_.size() && source_[at_ + end.size()] == '\n';
      take(end.size() + (newline ? 1 : 0));
    } else {
      return false;
    }
    return true;
  }

  void skip_comment(int opened) {
    size_t close = source_.find("#}", at_);
    if (close == source_.npos) {
      line_ = opened;
      error("a comment is opened with '{#' and never closed with '#}'");
    }
    if (close > at_ && (source_[close - 1] == '-' || source_[close - 1] == '+')) --close;
    take(close - at_);
    take_block_end("#}", true);
  }

  // After "{%": where this is {% raw %}, takes all up to {% endraw %} as text.
  bool read_raw(int opened) {
    size_t at = at_ + space_size(at_);
    if (!std::string_view(source_).substr(at).starts_with("raw")) return false;
    at += 3;
    at += space_size(at);
    const std::string_view behind = std::string_view(source_).substr(at);
    if (!behind.starts_with("%}") && !behind.starts_with("-%}")) return false;
    take(at - at_);
    take_block_end("%}", false);
    for (size_t tag = source_.find("{%", at_); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
      size_t word = tag + 2;
      char mark = word < source_.size() ? source_[word] : '\0';
      if (mark == '-' || mark == '+') {
        ++word;
      } else {
        mark = '\0';
      }
      word += space_size(word);
      if (!std::string_view(source_).substr(word).starts_with("endraw")) continue;
      word += 6;
      word += space_size(word);
      const std::string_view end = std::string_view(source_).substr(word);
      if (!end.starts_with("%}") && !end.starts_with("-%}") && !end.starts_with("+%}")) continue;
      const std::string_view text = stripped(std::string_view(source_).substr(at_, tag - at_), mark, false);
      if (!text.empty()) add(TokenKind::kData, std::string(text));
      take(word - at_);
      take_block_end("%}", true);
      return true;
    }
    line_ = opened;
    error("{% raw %} is never closed with {% endraw %}");
  }

  void read_tag(bool variable, int opened) {
    std::string brackets;
    while (at_ < source_.size()) {
      if (brackets.empty() && take_block_end(variable ? "}}" : "%}", !variable)) {
        add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, {});
        return;
      }
      if (const size_t space = space_size(at_); space > 0) {
        take(space);
      } else if (!read_number() && !read_name() && !read_string()) {
        read_operator(&brackets);
      }
    }
    line_ = opened;
    error(variable ? "'{{' is never closed with '}}'" : "'{%' is never closed with '%}'");
  }

  // Digits with single underscores between them, from `at`.
  size_t digits_size(size_t at) const {
    size_t end = at;
    while (end < source_.size() &&
           (ascii::is_digit(source_[end]) ||
            (source_[end] == '_' && end > at && end + 1 < source_.size() && ascii::is_digit(source_[end + 1]))))
      ++end;
    return end - at;
  }

  bool read_number() {
    if (!ascii::is_digit(source_[at_])) return false;
    const size_t whole = digits_size(at_);
    size_t end = at_ + whole;
    bool real = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // a.0.1 is two subscripts, no float
    if (!after_dot) {
      size_t fraction = end;
      if (fraction + 1 < source_.size() && source_[fraction] == '.' && ascii::is_digit(source_[fraction + 1])) {
        fraction += 1 + digits_size(fraction + 1);
        end = fraction;
        real = true;
      }
      size_t power = end;
      if (power < source_.size() && (source_[power] == 'e' || source_[power] == 'E')) {
        ++power;
        if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
        if (const size_t size = digits_size(power); size > 0) {
          end = power + size;
          real = true;
        }
      }
    }
    if (real) return add_float(end);
    return add_integer(whole);
  }

  bool add_float(size_t end) {
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    add(TokenKind::kFloat, text);
    const auto done = std::from_chars(text.data(), text.data() + text.size(), tokens_.back().real);
    if (done.ec == std::errc::result_out_of_range) tokens_.back().real = std::strtod(text.c_str(), nullptr);
    take(end - at_);
    return true;
  }

  bool add_integer(size_t whole) {
    int base = 10;
    std::string text = source_.substr(at_, whole);
    size_t size = whole;
    const char mark = text == "0" && at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : '\0';
    if (mark == 'x' || mark == 'o' || mark == 'b') {
      const int wanted = mark == 'x' ? 16 : mark == 'o' ? 8 : 2;
      size_t end = at_ + 2;
      std::string found;
      for (; end < source_.size(); ++end) {
        const char c = source_[end];
        const int digit = ascii::is_digit(c)                       ? c - '0'
                          : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                   : 99;
        if (c == '_') continue;
        if (digit >= wanted) break;
        found += c;
      }
      if (!found.empty()) {
        base = wanted;
        text = found;
        size = end - at_;
      }
    } else if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != text.npos) {
      text = "0";  // "012" is 0 and then 12, which the parser refuses
      size = 1;
    }
    std::erase(text, '_');
    add(TokenKind::kInteger, text);
    const auto done = std::from_chars(text.data(), text.data() + text.size(), tokens_.back().integer, base);
    if (done.ec != std::errc())
      error("the integer " + text + " does not fit 64 bits, the largest integers of a template");
    take(size);
    return true;
  }

  bool read_name() {
    size_t end = at_;
    while (end < source_.size()) {
      size_t next = end;
      const char32_t c = decode_char(source_, &next);
      if (!(c == '_' || is_alnum(c))) break;
      end = next;
    }
    if (end == at_) return false;
    add(TokenKind::kName, source_.substr(at_, end - at_));
    take(end - at_);
    return true;
  }

  bool read_string() {
    const char quote = source_[at_];
    if (quote != '\'' && quote != '"') return false;
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) error(std::string("a string is opened with ") + quote + " and never closed");
    add(TokenKind::kString, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    take(end + 1 - at_);
    return true;
  }

  // Python's escapes, as its "unicode-escape" codec reads them.
  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 >= text.size()) {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      constexpr std::string_view kFrom = "abfnrtv\\'\"";
      constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t plain = kFrom.find(c); plain != kFrom.npos) {
        out += kTo[plain];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        char32_t code = hex(text, i + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8);
        i += c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (code >= 0xD800 && code < 0xDC00 && text.substr(i + 1).starts_with("\\u")) {
          const char32_t low = hex(text, i + 3, 4);
          if (low >= 0xDC00 && low < 0xE000) {
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            i += 6;
          }
        }
        if (code >= 0xD800 && code < 0xE000) error("a string has half of a surrogate pair, which is no character");
        append_char(&out, code);
      } else if (c >= '0' && c <= '7') {
        char32_t code = 0;
        size_t count = 0;
        for (; count < 3 && i + count < text.size() && text[i + count] >= '0' && text[i + count] <= '7'; ++count) {
          code = code * 8 + static_cast<char32_t>(text[i + count] - '0');
        }
        i += count - 1;
        append_char(&out, code);
      } else if (c == 'N') {
        error("\\N{...} in a string is not supported: write the character itself or \\uXXXX");
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  char32_t hex(std::string_view text, size_t at, size_t digits) const {
    uint32_t code = 0;
    const bool whole = at + digits <= text.size();
    const char* begin = text.data() + std::min(at, text.size());
    if (!whole || std::from_chars(begin, begin + digits, code, 16).ptr != begin + digits || code > 0x10FFFF) {
      error("a string has a broken \\x, \\u or \\U escape: expected " + std::to_string(digits) +
            " hexadecimal digits of a character");
    }
    return code;
  }

  void read_operator(std::string* brackets) {
    for (const std::string_view op : kTwoCharOperators) {
      if (starts(op)) {
        add(TokenKind::kOperator, std::string(op));
        return take(2);
      }
    }
    const char c = source_[at_];
    if (kOneCharOperators.find(c) == kOneCharOperators.npos) {
      error("unexpected character '" + source_.substr(at_, char_size(source_, at_)) + "' in a tag");
    }
    if (c == '(' || c == '[' || c == '{') *brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets->empty()) error(std::string("unexpected '") + c + "'");
      if (brackets->back() != c) error(std::string("unexpected '") + c + "', expected '" + brackets->back() + "'");
      brackets->pop_back();
    }
    add(TokenKind::kOperator, std::string(1, c));
    take(1);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace coluber::jinja
