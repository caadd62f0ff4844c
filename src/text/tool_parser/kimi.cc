// SPDX-License-Identifier: Apache-2.0
//
// Kimi K2 and Kimi Linear: a section of <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}
// <|tool_call_end|>. What stands in front of the arguments is the call's id, which the model wants to see again.
#include "text/grammar/structure.h"
#include "text/tool_parser/answer_text.h"
#include "text/tool_parser/tool_formats.h"

namespace coluber {
namespace {

constexpr std::string_view kSection = "<|tool_calls_section_begin|>", kSectionEnd = "<|tool_calls_section_end|>",
                           kCall = "<|tool_call_begin|>", kArguments = "<|tool_call_argument_begin|>",
                           kCallEnd = "<|tool_call_end|>";

class KimiParser : public ToolParser {
 public:
  void push(std::string_view text, AnswerDelta& delta) override {
    for (const char c : text) take(c, delta);
  }

  void finish(AnswerDelta& delta) override {
    std::string rest = marks_.rest();
    if (place_ == Place::kText) text_.text(rest, delta);
    if (place_ == Place::kArguments) delta_of(delta, call_).arguments += rest;
    text_.finish(delta);
  }

 private:
  enum class Place { kText, kSection, kId, kArguments };

  void take(char c, AnswerDelta& delta) {
    std::string text;
    const std::string_view* found = marks_.take(c, text);
    if (place_ == Place::kText) text_.text(text, delta);
    if (place_ == Place::kId) id_ += text;
    if (place_ == Place::kArguments) grow(text, delta);
    if (found != nullptr) mark(*found, delta);
  }

  // Blanks around the arguments are not theirs.
  void grow(const std::string& text, AnswerDelta& delta) {
    for (const char c : text) {
      blanks_ += c;
      if (is_blank(c)) continue;
      if (!has_arguments_) blanks_.assign(1, c);
      delta_of(delta, call_).arguments += std::exchange(blanks_, {});
      has_arguments_ = true;
    }
  }

  void mark(std::string_view mark, AnswerDelta& delta) {
    if (mark == kSection) {
      place_ = Place::kSection;
    } else if (mark == kSectionEnd) {
      place_ = Place::kText;
    } else if (mark == kCall) {
      place_ = Place::kId;
      id_.clear();
    } else if (mark == kArguments && place_ == Place::kId) {
      begin_call(delta);
    } else if (mark == kCallEnd && place_ != Place::kText) {
      if (place_ == Place::kArguments && !has_arguments_) delta_of(delta, call_).arguments += "{}";
      place_ = Place::kSection;
    } else if (place_ == Place::kText) {
      text_.text(mark, delta);
    }
  }

  // "functions.get_weather:0"
  void begin_call(AnswerDelta& delta) {
    while (!id_.empty() && is_blank(id_.back())) id_.pop_back();
    id_.erase(0, id_.find_first_not_of(" \n\t\r") == std::string::npos ? id_.size() : id_.find_first_not_of(" \n\t\r"));
    std::string name = id_.substr(0, id_.rfind(':'));
    if (name.starts_with("functions.")) name.erase(0, 10);
    if (name.empty()) {
      place_ = Place::kText;
      return text_.text(std::string(kCall) + id_ + std::string(kArguments), delta);
    }
    call_ = text_.call();
    CallDelta& call = delta_of(delta, call_);
    call.name = name;
    call.id = id_;
    has_arguments_ = false;
    blanks_.clear();
    place_ = Place::kArguments;
  }

  MarkerFinder marks_{{kSection, kSectionEnd, kCall, kArguments, kCallEnd}};
  AnswerText text_;
  Place place_ = Place::kText;
  std::string id_, blanks_;
  int64_t call_ = -1;
  bool has_arguments_ = false;
};

std::unique_ptr<ToolParser> make(const Json&) { return std::make_unique<KimiParser>(); }

Json structure(const std::vector<ToolShape>& tools, bool many) {
  Json::Array tags;
  for (const ToolShape& tool : tools) {
    Json content =
        sequence_format({pattern_format("[0-9]{1,3}"), literal_format(kArguments), schema_format(tool.parameters)});
    tags.push_back(tag_format(fmt::format("{}functions.{}:", kCall, tool.name), std::move(content), kCallEnd));
  }
  return sequence_format(
      {literal_format(kSection), tags_format(std::move(tags), "", many), literal_format(kSectionEnd)});
}

}  // namespace

const ToolFormat kKimi = {"kimi", {kSection, kSectionEnd, kCall, kArguments, kCallEnd}, {kSection}, make, structure};

}  // namespace coluber
