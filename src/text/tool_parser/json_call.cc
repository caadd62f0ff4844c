// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/json_call.h"

#include <algorithm>

#include "base/json.h"
#include "text/tool_parser/answer_text.h"

namespace coluber {
namespace {

constexpr size_t kMaxKeyBytes = 64;

// The text that a JSON text stands for; empty where it is none.
std::string text_of(const std::string& json) {
  const Result<Json> parsed = parse_json(json, "a text");
  return parsed && parsed->is_string() ? parsed->as_string() : std::string();
}

}  // namespace

void JsonCall::become_sure() {
  sure_ = has_name_ && (names_.empty() || std::find(names_.begin(), names_.end(), name_) != names_.end());
}

JsonCall::State JsonCall::end_value() {
  place_ = Place::kCommaOrEnd;
  if (key_ == "name") {
    name_ = text_of(value_);
    if (name_.empty() || has_name_) return State::kNoCall;
    has_name_ = true;
    if (has_arguments_) become_sure();
    if (has_arguments_ && !sure_) return State::kNoCall;
  } else if (is_arguments() && end_.is_text()) {
    arguments_ += text_of(value_);  // JSON in a text, as some models write it
  }
  return State::kGoing;
}

JsonCall::State JsonCall::in_value(char c) {
  const JsonValueEnd::State state = end_.take(c);
  if (state == JsonValueEnd::State::kBad) return State::kNoCall;
  if (state != JsonValueEnd::State::kEndedBefore) {
    if (is_arguments() && !end_.is_text())
      arguments_ += c;
    else
      value_ += c;
  }
  if (state == JsonValueEnd::State::kGoing) return State::kGoing;
  if (end_value() == State::kNoCall) return State::kNoCall;
  if (state == JsonValueEnd::State::kEnded) return State::kGoing;
  text_.pop_back();
  return take(c);
}

JsonCall::State JsonCall::take(char c) {
  text_ += c;
  if (place_ == Place::kInValue) return in_value(c);
  if (place_ == Place::kInKey) {
    if (c == '"') place_ = Place::kColon;
    if (c != '"') key_ += c;
    return key_.size() > kMaxKeyBytes || c == '\\' ? State::kNoCall : State::kGoing;
  }
  if (is_blank(c)) return State::kGoing;
  switch (place_) {
    case Place::kStart:
      place_ = Place::kKeyOrEnd;
      return c == '{' ? State::kGoing : State::kNoCall;
    case Place::kKeyOrEnd:
    case Place::kKey:
      place_ = Place::kInKey;
      key_.clear();
      return c == '"' ? State::kGoing : State::kNoCall;
    case Place::kColon:
      place_ = Place::kValue;
      return c == ':' ? State::kGoing : State::kNoCall;
    case Place::kValue:
      place_ = Place::kInValue;
      end_ = {};
      value_.clear();
      if (is_arguments() && has_arguments_) return State::kNoCall;
      if (is_arguments()) {
        has_arguments_ = true;
        become_sure();
        if (has_name_ && !sure_) return State::kNoCall;
      }
      return in_value(c);
    case Place::kCommaOrEnd:
      if (c == ',') {
        place_ = Place::kKey;
        return State::kGoing;
      }
      if (c != '}' || !has_name_) return State::kNoCall;
      become_sure();
      if (!has_arguments_) arguments_ = "{}";
      return sure_ ? State::kEnded : State::kNoCall;
    case Place::kInKey:
    case Place::kInValue:
      break;
  }
  return State::kNoCall;
}

}  // namespace coluber
