// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/marked_json.h"

#include <optional>

#include "text/grammar/structure.h"
#include "text/tool_parser/answer_text.h"
#include "text/tool_parser/json_call.h"

namespace coluber {
namespace {

class MarkedJsonParser : public ToolParser {
 public:
  MarkedJsonParser(JsonStyle style, const Json& tools)
      : style_(std::move(style)), names_(tool_names(tools)), begins_(begins(style_)) {}

  void push(std::string_view text, AnswerDelta& delta) override {
    for (const char c : text) take(c, delta);
  }

  void finish(AnswerDelta& delta) override {
    if (place_ == Place::kCall && !call_->is_sure()) give_up(delta);
    if (place_ == Place::kText) text_.text(begins_.rest(), delta);
    // Blanks and brackets behind a call, or the beginning of an end marker, are nobody's text.
    if (place_ == Place::kCalls && !had_call_) text_.text(opened_, delta);
    text_.finish(delta);
  }

 private:
  enum class Place { kText, kCalls, kCall };
  static constexpr std::string_view kList = "[";  // a bare list of calls may begin

  static std::vector<std::string_view> begins(JsonStyle& style) {
    style.takes_bare = style.takes_bare || style.begins.empty();
    std::vector<std::string_view> all = style.begins;
    if (style.takes_bare) all.push_back(kList);
    return all;
  }

  void take(char c, AnswerDelta& delta) {
    switch (place_) {
      case Place::kText:
        return take_text(c, delta);
      case Place::kCalls:
        return take_between(c, delta);
      case Place::kCall:
        return take_call(c, delta);
    }
  }

  void take_text(char c, AnswerDelta& delta) {
    std::string text;
    const std::string_view* found = begins_.take(c, text);
    if (style_.takes_bare && text.ends_with('{')) {
      text.pop_back();
      text_.text(text, delta);
      opened_.clear();
      is_bare_ = true;
      had_call_ = false;
      depth_ = 0;
      begin_call(delta);
      return;
    }
    text_.text(text, delta);
    if (found == nullptr) return;
    place_ = Place::kCalls;
    opened_ = *found;
    had_call_ = false;
    is_bare_ = *found == kList;
    depth_ = is_bare_ ? 1 : 0;
  }

  void begin_call(AnswerDelta& delta) {
    place_ = Place::kCall;
    call_.emplace(is_bare_ ? names_ : kAnyName);
    call_index_ = -1;
    take_call('{', delta);
  }

  // Between calls: blanks, commas, brackets, the end marker.
  void take_between(char c, AnswerDelta& delta) {
    opened_ += c;
    if (!style_.end.empty() && !end_part_.empty()) return take_end(c, delta);
    if (is_blank(c) || c == ',' || c == ';') return;
    if (c == '{') {
      opened_.pop_back();
      return begin_call(delta);
    }
    if (c == '[' && depth_ == 0 && !had_call_) {
      ++depth_;
      return;
    }
    if (c == ']' && depth_ > 0) {
      --depth_;
      if (!style_.end.empty()) return;
      if (!had_call_) text_.text(opened_, delta);
      return back_to_text();
    }
    take_end(c, delta);
  }

  void take_end(char c, AnswerDelta& delta) {
    end_part_ += c;
    if (!style_.end.empty() && end_part_ == style_.end) {
      if (!had_call_) text_.text(opened_, delta);
      return back_to_text();
    }
    if (!style_.end.empty() && style_.end.starts_with(end_part_)) return;
    // Neither a call nor the end: text, what has been opened for nothing included.
    const std::string rest = had_call_ ? end_part_ : opened_;
    back_to_text();
    for (const char again : rest.substr(0, had_call_ ? rest.size() : 0)) take_text(again, delta);
    if (!had_call_) text_.text(rest, delta);
  }

  void take_call(char c, AnswerDelta& delta) {
    const JsonCall::State state = call_->take(c);
    if (state == JsonCall::State::kNoCall && !call_->is_sure()) return give_up(delta);
    if (call_->is_sure()) tell_call(delta);
    if (state == JsonCall::State::kGoing) return;
    had_call_ = true;
    place_ = Place::kCalls;
    opened_.clear();
  }

  void tell_call(AnswerDelta& delta) {
    const std::string arguments = call_->take_arguments();
    if (call_index_ < 0) {
      call_index_ = text_.call();
      delta_of(delta, call_index_).name = call_->name();
    }
    if (!arguments.empty()) delta_of(delta, call_index_).arguments += arguments;
  }

  void give_up(AnswerDelta& delta) {
    const std::string text = opened_ + call_->text();
    back_to_text();
    text_.text(text, delta);
  }

  void back_to_text() {
    place_ = Place::kText;
    opened_.clear();
    end_part_.clear();
  }

  inline static const std::vector<std::string> kAnyName;

  JsonStyle style_;
  std::vector<std::string> names_;
  MarkerFinder begins_;
  AnswerText text_;
  Place place_ = Place::kText;
  std::optional<JsonCall> call_;
  std::string opened_;    // since the begin marker or the last call
  std::string end_part_;  // the beginning of the end marker
  int64_t call_index_ = -1;
  int depth_ = 0;
  bool is_bare_ = false, had_call_ = false;
};

}  // namespace

std::unique_ptr<ToolParser> make_json_parser(JsonStyle style, const Json& tools) {
  return std::make_unique<MarkedJsonParser>(std::move(style), tools);
}

std::vector<std::string> tool_names(const Json& tools) {
  std::vector<std::string> names;
  if (!tools.is_array()) return names;
  for (const Json& tool : tools.as_array()) {
    const Json* function = tool.find("function");
    const Json* name = function == nullptr ? nullptr : function->find("name");
    if (name != nullptr && name->is_string()) names.push_back(name->as_string());
  }
  return names;
}

Json json_structure(const JsonShape& shape, const std::vector<ToolShape>& tools, bool many) {
  Json::Array tags;
  for (const ToolShape& tool : tools)
    tags.push_back(
        tag_format(fmt::format("{}{{\"name\": {}, \"{}\": ", shape.call_open, Json(tool.name).dump(), shape.key),
                   schema_format(tool.parameters), fmt::format("}}{}", shape.call_close)));
  Json::Array parts;
  if (!shape.open.empty()) parts.push_back(literal_format(shape.open));
  parts.push_back(tags_format(std::move(tags), shape.separator, many));
  if (!shape.close.empty()) parts.push_back(literal_format(shape.close));
  return sequence_format(std::move(parts));
}

}  // namespace coluber
