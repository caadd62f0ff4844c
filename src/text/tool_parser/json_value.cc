// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/json_value.h"

#include "text/tool_parser/answer_text.h"

namespace coluber {
namespace {

constexpr size_t kMaxDepth = 128;

}  // namespace

JsonValueEnd::State JsonValueEnd::take(char c) {
  if (kind_ == Kind::kNone) {
    kind_ = c == '"' ? Kind::kText : c == '{' || c == '[' ? Kind::kContainer : Kind::kWord;
    in_text_ = c == '"';
    if (kind_ == Kind::kContainer) open_ += c;
    const bool word = (c >= '0' && c <= '9') || c == '-' || c == 't' || c == 'f' || c == 'n';
    return kind_ == Kind::kWord && !word ? State::kBad : State::kGoing;
  }
  if (kind_ == Kind::kWord) {
    if (c == ',' || c == '}' || c == ']' || is_blank(c)) return State::kEndedBefore;
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' || c == '.';
    return word ? State::kGoing : State::kBad;
  }
  if (in_text_) {
    if (escaped_ || c == '\\') {
      escaped_ = !escaped_;
    } else if (c == '"') {
      in_text_ = false;
      if (open_.empty()) return State::kEnded;
    }
    return State::kGoing;
  }
  if (c == '"') in_text_ = true;
  if (c == '{' || c == '[') open_ += c;
  if (open_.size() > kMaxDepth) return State::kBad;
  if (c == '}' || c == ']') {
    if (open_.back() != (c == '}' ? '{' : '[')) return State::kBad;
    open_.pop_back();
    if (open_.empty()) return State::kEnded;
  }
  return State::kGoing;
}

}  // namespace coluber
