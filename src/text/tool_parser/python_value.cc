// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/python_value.h"

#include <optional>

#include "text/tool_parser/answer_text.h"

namespace coluber {
namespace {

constexpr int kMaxDepth = 64;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::optional<Json> all() {
    std::optional<Json> value = read(0);
    blanks();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  void blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }
  bool eat(char c) {
    blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<Json> read(int depth) {
    blanks();
    if (at_ == text_.size() || depth > kMaxDepth) return std::nullopt;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return read_text();
    if (c == '[' || c == '(') return read_list(c == '[' ? ']' : ')', depth);
    if (c == '{') return read_dict(depth);
    return read_word();
  }

  std::optional<Json> read_text() {
    const char quote = text_[at_++];
    std::string made;
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\\' && at_ < text_.size()) {
        c = text_[at_++];
        if (c == 'n')
          c = '\n';
        else if (c == 't')
          c = '\t';
        else if (c == 'r')
          c = '\r';
        else if (c != quote && c != '\\' && c != '\'' && c != '"')
          made += '\\';
      }
      made += c;
    }
    if (at_ == text_.size()) return std::nullopt;
    ++at_;
    return Json(std::move(made));
  }

  std::optional<Json> read_list(char end, int depth) {
    ++at_;
    Json::Array items;
    while (!eat(end)) {
      std::optional<Json> item = read(depth + 1);
      if (!item) return std::nullopt;
      items.push_back(std::move(*item));
      if (!eat(',')) return eat(end) ? std::optional<Json>(Json(std::move(items))) : std::nullopt;
    }
    return Json(std::move(items));
  }

  std::optional<Json> read_dict(int depth) {
    ++at_;
    Json made(Json::Object{});
    while (!eat('}')) {
      const std::optional<Json> key = read(depth + 1);
      if (!key || !eat(':')) return std::nullopt;
      std::optional<Json> value = read(depth + 1);
      if (!value) return std::nullopt;
      made.set(key->is_string() ? key->as_string() : key->dump(), std::move(*value));
      if (!eat(',')) return eat('}') ? std::optional<Json>(std::move(made)) : std::nullopt;
    }
    return made;
  }

  std::optional<Json> read_word() {
    const size_t begin = at_;
    while (at_ < text_.size() && std::string_view(",:)]} \n\t\r").find(text_[at_]) == std::string_view::npos) ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word == "True" || word == "False") return Json(word == "True");
    if (word == "None") return Json();
    Result<Json> parsed = parse_json(word, "a value");
    return parsed ? std::optional<Json>(std::move(*parsed)) : std::nullopt;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

void PythonValueEnd::take(char c) {
  if (quote_ != 0) {
    if (escaped_ || c == '\\')
      escaped_ = !escaped_;
    else if (c == quote_)
      quote_ = 0;
    return;
  }
  if (c == '"' || c == '\'') quote_ = c;
  if (c == '[' || c == '{' || c == '(') ++depth_;
  if ((c == ']' || c == '}' || c == ')') && depth_ > 0) --depth_;
}

Json value_of_python(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  std::optional<Json> value = Reader(text).all();
  return value ? std::move(*value) : Json(text);
}

}  // namespace coluber
