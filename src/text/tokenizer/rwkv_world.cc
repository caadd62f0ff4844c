// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <optional>

#include "text/tokenizer/foreign_formats.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

constexpr int32_t kMostIds = 1 << 22;
constexpr size_t kMostTokenBytes = 1 << 16;
constexpr std::string_view kEndOfText = "<|rwkv_tokenizer_end_of_text|>";  // id 0, which the file leaves out

// A Python literal: '...' or "..." is text, with b in front bytes.
class Literal {
 public:
  explicit Literal(std::string_view source) : rest_(source) {}

  // None where it is not one whole literal.
  std::optional<std::string> read() {
    is_bytes_ = take('b') || take('B');
    if (rest_.size() < 2 || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const char quote = rest_[0];
    rest_.remove_prefix(1);
    std::string out;
    while (!rest_.empty() && rest_[0] != quote) {
      if (rest_[0] != '\\') {
        out += rest_[0];
        rest_.remove_prefix(1);
      } else if (rest_.remove_prefix(1); !read_escape(out)) {
        return std::nullopt;
      }
    }
    if (!take(quote) || !rest_.empty()) return std::nullopt;
    return out;
  }

  // What stands between the quotes of a literal of bytes; none where an escape is wrong.
  std::optional<std::string> read_inside() {
    is_bytes_ = true;
    std::string out;
    while (!rest_.empty()) {
      if (!take('\\')) {
        out += rest_[0];
        rest_.remove_prefix(1);
      } else if (!read_escape(out)) {
        return std::nullopt;
      }
    }
    return out;
  }

 private:
  bool take(char c) {
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool read_escape(std::string& out) {
    if (rest_.empty()) return false;
    const char kind = rest_[0];
    rest_.remove_prefix(1);
    constexpr std::string_view kNames = "ntrabfv0\\'\"", kValues("\n\t\r\a\b\f\v\0\\'\"", 11);
    if (const size_t at = kNames.find(kind); at != std::string_view::npos) {
      out += kValues[at];
      return true;
    }
    if (kind == 'x') return read_number(2, out);
    if (kind == 'u' && !is_bytes_) return read_number(4, out);
    return kind == 'U' && !is_bytes_ && read_number(8, out);
  }

  bool read_number(size_t digits, std::string& out) {
    if (rest_.size() < digits) return false;
    uint32_t value = 0;
    const char* end = rest_.data() + digits;
    if (const auto [at, error] = std::from_chars(rest_.data(), end, value, 16); at != end || error != std::errc())
      return false;
    rest_.remove_prefix(digits);
    if (is_bytes_) {
      out += static_cast<char>(value);
      return true;
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return false;
    append_utf8(out, value);
    return true;
  }

  std::string_view rest_;
  bool is_bytes_ = false;
};

class VocabularyReader {
 public:
  // `unit`: what messages count.
  VocabularyReader(const std::string& source, std::string_view unit) : source_(source), unit_(unit) {}

  void read_line(std::string_view line) {
    ++line_;
    const size_t first = line.find(' '), last = line.rfind(' ');
    if (first == std::string_view::npos || first == last)
      throw wrong("expected an id, a literal and a length, found \"{}\"", sanitize_utf8(line.substr(0, 80)));
    const int64_t id = number(line.substr(0, first), "an id", kMostIds);
    const int64_t length = number(line.substr(last + 1), "a length", kMostTokenBytes);
    const std::string_view literal = line.substr(first + 1, last - first - 1);
    std::optional<std::string> token = Literal(literal).read();
    if (!token) throw wrong("\"{}\" is no Python literal of a text or bytes", sanitize_utf8(literal.substr(0, 80)));
    if (static_cast<int64_t>(token->size()) != length)
      throw wrong("the token should be {} bytes long and is {}", length, token->size());
    if (id == 0) throw wrong("the id 0 stands for the end of a text and cannot be a token");
    add(id, std::move(*token));
  }

  // Of a GGUF file: the id is the place, the text what stands in the literal.
  void read_stored(int64_t id, std::string_view text) {
    line_ = id;
    std::optional<std::string> token = Literal(text).read_inside();
    if (!token || token->size() > kMostTokenBytes)
      throw wrong("\"{}\" is no escaped text of at most {} bytes", sanitize_utf8(text.substr(0, 80)), kMostTokenBytes);
    add(id, std::move(*token));
  }

  ForeignTokenizer finish() {
    if (bytes_.empty()) throw wrong("it has no tokens");
    vocab_.add(kEndOfText, 0);
    ForeignTokenizer tokenizer;
    tokenizer.model = make_longest_match(bytes_, std::move(vocab_));
    tokenizer.components.set("decoder", Json(Json::Object{{"type", Json("ByteLevel")}}));
    tokenizer.hidden_special = 0;
    tokenizer.byte_level = true;
    tokenizer.eos_token = kEndOfText;
    return tokenizer;
  }

 private:
  void add(int64_t id, std::string token) {
    std::string letters;
    append_byte_letters(letters, token);
    if (token.empty() || !vocab_.add(letters, id)) throw wrong("the token or its id {} is there twice, or empty", id);
    if (static_cast<size_t>(id) >= bytes_.size()) bytes_.resize(static_cast<size_t>(id) + 1);
    bytes_[static_cast<size_t>(id)] = std::move(token);
  }

  template <typename... Args>
  Error wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(ErrorCode::kInvalidData, "{}: {} {}: {}", source_, unit_, line_,
                      fmt::format(format, std::forward<Args>(args)...));
  }

  int64_t number(std::string_view text, std::string_view what, int64_t highest) const {
    int64_t value = -1;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (at != end || error != std::errc() || value < 0 || value > highest)
      throw wrong("expected {} from 0 to {}, found \"{}\"", what, highest, sanitize_utf8(text.substr(0, 40)));
    return value;
  }

  const std::string& source_;
  std::string_view unit_;
  int64_t line_ = 0;
  Vocab vocab_;
  std::vector<std::string> bytes_;
};

}  // namespace

ForeignTokenizer read_world_vocabulary(std::string_view text, const std::string& source) {
  VocabularyReader reader(source, "line");
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) reader.read_line(line);
  }
  return reader.finish();
}

ForeignTokenizer read_world_vocabulary(const StoredVocabulary& vocabulary, const std::string& source) {
  VocabularyReader reader(source, "token");
  for (size_t i = 1; i < vocabulary.tokens.size(); ++i) {
    if (vocabulary.type_of(i) == StoredTokenType::kNormal)
      reader.read_stored(static_cast<int64_t>(i), vocabulary.tokens[i]);
  }
  return reader.finish();
}

}  // namespace coluber
