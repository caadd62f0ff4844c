// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/xml_calls.h"

#include "text/tool_parser/answer_text.h"

namespace coluber {
namespace {

constexpr size_t kMaxNameBytes = 256;

const Json* schema_of(const Json& tools, std::string_view tool, std::string_view argument) {
  if (!tools.is_array()) return nullptr;
  for (const Json& one : tools.as_array()) {
    const Json* function = one.find("function");
    const Json* name = function == nullptr ? nullptr : function->find("name");
    if (name == nullptr || !(*name == Json(tool))) continue;
    const Json* parameters = function->find("parameters");
    const Json* properties = parameters == nullptr ? nullptr : parameters->find("properties");
    return properties == nullptr ? nullptr : properties->find(argument);
  }
  return nullptr;
}

bool is_text_type(const Json* schema) {
  const Json* type = schema == nullptr ? nullptr : schema->find("type");
  return type != nullptr && *type == Json("string");
}

class XmlParser : public ToolParser {
 public:
  XmlParser(const XmlStyle& style, const Json& tools) : style_(style), tools_(tools), begins_({style.begin}) {}

  void push(std::string_view text, AnswerDelta& delta) override {
    for (const char c : text) take(c, delta);
  }

  void finish(AnswerDelta& delta) override {
    if (place_ == Place::kText) text_.text(begins_.rest(), delta);
    if (place_ != Place::kText && call_ < 0 && !had_call_) text_.text(opened_, delta);
    text_.finish(delta);
  }

 private:
  enum class Place { kText, kCalls, kName, kArguments, kKey, kValue };

  void take(char c, AnswerDelta& delta) {
    if (place_ == Place::kText) {
      std::string text;
      const std::string_view* found = begins_.take(c, text);
      text_.text(text, delta);
      if (found != nullptr) open();
      return;
    }
    opened_ += c;
    part_ += c;
    switch (place_) {
      case Place::kCalls:
        return take_tag(style_.call, Place::kName, style_.end, delta);
      case Place::kName:
        return take_name(delta);
      case Place::kArguments:
        return take_tag(style_.argument, Place::kKey, style_.call_end, delta);
      case Place::kKey:
        return take_key(delta);
      case Place::kValue:
        return take_value(delta);
      case Place::kText:
        return;
    }
  }

  void open() {
    place_ = Place::kCalls;
    opened_ = style_.begin;
    part_.clear();
    had_call_ = false;
    call_ = -1;
  }

  // Blanks, and then one of two tags.
  void take_tag(std::string_view next, Place place, std::string_view end, AnswerDelta& delta) {
    if (part_.size() == 1 && is_blank(part_.front())) return part_.clear();
    if (part_ == next) return go(place);
    if (part_ == end) return close(delta);
    if (next.starts_with(part_) || end.starts_with(part_)) return;
    // Neither: a call that has begun ends here, and what follows is text.
    const std::string rest = call_ < 0 && !had_call_ ? opened_ : part_;
    if (call_ >= 0) delta_of(delta, call_).arguments += num_arguments_ == 0 ? "{}" : "}";
    go(Place::kText);
    text_.text(rest, delta);
  }

  void go(Place place) {
    place_ = place;
    part_.clear();
  }

  void close(AnswerDelta& delta) {
    if (place_ == Place::kCalls) {
      if (!had_call_) text_.text(opened_, delta);
      return go(Place::kText);
    }
    delta_of(delta, call_).arguments += num_arguments_ == 0 ? "{}" : "}";
    call_ = -1;
    had_call_ = true;
    go(Place::kCalls);
  }

  bool is_ended_by(std::string_view mark) const { return part_.ends_with(mark); }

  void take_name(AnswerDelta& delta) {
    const bool is_empty = part_ == style_.named;
    if (is_empty || !is_ended_by(style_.named)) {
      if (!is_empty && part_.size() <= kMaxNameBytes && part_.back() != '\n') return;
      const std::string text = had_call_ ? part_ : opened_;
      go(Place::kText);
      return text_.text(text, delta);
    }
    name_ = part_.substr(0, part_.size() - style_.named.size());
    call_ = text_.call();
    num_arguments_ = 0;
    delta_of(delta, call_).name = name_;
    go(Place::kArguments);
  }

  void take_key(AnswerDelta&) {
    if (!is_ended_by(style_.named)) return;
    key_ = part_.substr(0, part_.size() - style_.named.size());
    go(Place::kValue);
  }

  void take_value(AnswerDelta& delta) {
    if (!is_ended_by(style_.value_end)) return;
    std::string_view text = part_;
    text.remove_suffix(style_.value_end.size());
    if (text.starts_with('\n')) text.remove_prefix(1);
    if (text.ends_with('\n')) text.remove_suffix(1);
    const Json value = value_of_text(text, schema_of(tools_, name_, key_));
    delta_of(delta, call_).arguments +=
        fmt::format("{}{}: {}", num_arguments_++ == 0 ? "{" : ", ", Json(key_).dump(), value.dump());
    go(Place::kArguments);
  }

  XmlStyle style_;
  Json tools_;
  MarkerFinder begins_;
  AnswerText text_;
  Place place_ = Place::kText;
  std::string opened_, part_;  // since the begin marker; of what is being read
  std::string name_, key_;
  int64_t call_ = -1;  // that is open
  int64_t num_arguments_ = 0;
  bool had_call_ = false;
};

}  // namespace

std::unique_ptr<ToolParser> make_xml_parser(const XmlStyle& style, const Json& tools) {
  return std::make_unique<XmlParser>(style, tools);
}

Json value_of_text(std::string_view text, const Json* schema) {
  if (is_text_type(schema)) return Json(text);
  Result<Json> parsed = parse_json(text, "a value", {.allow_python_constants = false});
  if (parsed) return std::move(*parsed);
  if (text == "True" || text == "False") return Json(text == "True");
  if (text == "None") return Json();
  return Json(text);
}

}  // namespace coluber
