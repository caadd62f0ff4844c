// SPDX-License-Identifier: Apache-2.0
//
// LFM2: calls as Python writes them, [f(a="x", b=[1, 2]), g()] between <|tool_call_start|> and <|tool_call_end|>; it
// can write {"name": ..., "arguments": {...}} there too. Arguments come out one by one.
#include "text/tool_parser/answer_text.h"
#include "text/tool_parser/marked_json.h"
#include "text/tool_parser/python_value.h"
#include "text/tool_parser/tool_formats.h"

namespace coluber {
namespace {

constexpr std::string_view kStart = "<|tool_call_start|>", kEnd = "<|tool_call_end|>";
constexpr size_t kMaxNameBytes = 256;

class PythonParser : public ToolParser {
 public:
  explicit PythonParser(const Json& tools) : tools_(tools) {}

  void push(std::string_view text, AnswerDelta& delta) override {
    for (const char c : text) take(c, delta);
  }

  void finish(AnswerDelta& delta) override {
    if (json_) return json_->finish(delta);
    if (place_ == Place::kText) text_.text(marks_.rest(), delta);
    if (place_ == Place::kCalls && !had_call_) text_.text(opened_, delta);
    text_.finish(delta);
  }

 private:
  enum class Place { kText, kCalls, kKey, kValue };

  void take(char c, AnswerDelta& delta) {
    if (json_) return json_->push({&c, 1}, delta);
    if (place_ == Place::kText) {
      std::string text;
      const std::string_view* found = marks_.take(c, text);
      text_.text(text, delta);
      if (found == nullptr) return;
      place_ = Place::kCalls;
      opened_ = kStart;
      part_.clear();
      had_call_ = false;
      return;
    }
    opened_ += c;
    switch (place_) {
      case Place::kCalls:
        return take_between(c, delta);
      case Place::kKey:
        return take_key(c, delta);
      case Place::kValue:
        return take_value(c, delta);
      case Place::kText:
        return;
    }
  }

  // A name and its parenthesis, or the end; brackets, commas and blanks do not count.
  void take_between(char c, AnswerDelta& delta) {
    if (part_.empty() && (is_blank(c) || c == '[' || c == ']' || c == ',')) return;
    if (part_.empty() && c == '{' && call_ < 0) {
      json_ = make_json_parser({{kStart}, kEnd}, tools_);
      return json_->push(text_.take_blanks() + opened_, delta);
    }
    part_ += c;
    if (part_ == kEnd) {
      if (!had_call_) text_.text(opened_, delta);
      place_ = Place::kText;
    } else if (c == '(' && part_.size() > 1 && part_.front() != '<') {
      part_.pop_back();
      call_ = text_.call();
      delta_of(delta, call_).name = part_;
      had_call_ = true;
      num_arguments_ = 0;
      go(Place::kKey);
    } else if (!kEnd.starts_with(part_) && (!is_name(part_) || part_.size() > kMaxNameBytes)) {
      const std::string text = had_call_ ? part_ : opened_;
      place_ = Place::kText;
      text_.text(text, delta);
    }
  }

  static bool is_name(std::string_view text) {
    return text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
           std::string_view::npos;
  }

  void go(Place place) {
    place_ = place;
    part_.clear();
    value_ = {};
  }

  void take_key(char c, AnswerDelta& delta) {
    if (part_.empty() && (is_blank(c) || c == ',')) return;
    if (part_.empty() && c == ')') return close(delta);
    if (c != '=') {
      part_ += c;
      return;
    }
    while (!part_.empty() && is_blank(part_.back())) part_.pop_back();
    key_ = part_;
    go(Place::kValue);
  }

  void take_value(char c, AnswerDelta& delta) {
    const bool ended = value_.is_outside() && (c == ',' || c == ')');
    if (!ended) {
      value_.take(c);
      part_ += c;
      return;
    }
    delta_of(delta, call_).arguments +=
        fmt::format("{}{}: {}", num_arguments_++ == 0 ? "{" : ", ", Json(key_).dump(), value_of_python(part_).dump());
    go(Place::kKey);
    if (c == ')') close(delta);
  }

  void close(AnswerDelta& delta) {
    delta_of(delta, call_).arguments += num_arguments_ == 0 ? "{}" : "}";
    go(Place::kCalls);
  }

  Json tools_;
  std::unique_ptr<ToolParser> json_;
  MarkerFinder marks_{{kStart}};
  AnswerText text_;
  Place place_ = Place::kText;
  PythonValueEnd value_;
  std::string opened_, part_, key_;
  int64_t call_ = -1, num_arguments_ = 0;
  bool had_call_ = false;
};

std::unique_ptr<ToolParser> make(const Json& tools) { return std::make_unique<PythonParser>(tools); }

Json structure(const std::vector<ToolShape>& tools, bool many) {
  return json_structure({"<|tool_call_start|>[", {}, "arguments", {}, ", ", "]<|tool_call_end|>"}, tools, many);
}

}  // namespace

const ToolFormat kLfm2 = {
    "lfm2", {kStart, kEnd}, {kStart, "<|tool_list_start|>", "\"List of tools: ["}, make, structure};

}  // namespace coluber
