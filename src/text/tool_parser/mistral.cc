// SPDX-License-Identifier: Apache-2.0
//
// Mistral: [TOOL_CALLS] in front of a list of {"name": ..., "arguments": {...}}, and in newer models in front of each
// NAME[ARGS]{...}, which may have a [CALL_ID]... before [ARGS].
#include <algorithm>

#include "text/tool_parser/answer_text.h"
#include "text/tool_parser/json_value.h"
#include "text/tool_parser/marked_json.h"
#include "text/tool_parser/tool_formats.h"

namespace coluber {
namespace {

constexpr std::string_view kCalls = "[TOOL_CALLS]", kArguments = "[ARGS]", kId = "[CALL_ID]";
constexpr size_t kMaxNameBytes = 256;

class MistralParser : public ToolParser {
 public:
  explicit MistralParser(const Json& tools) : tools_(tools) {}

  void push(std::string_view text, AnswerDelta& delta) override {
    for (const char c : text) take(c, delta);
  }

  void finish(AnswerDelta& delta) override {
    if (list_) return list_->finish(delta);
    if (place_ == Place::kText) text_.text(marks_.rest(), delta);
    if (place_ == Place::kHead) text_.text(std::string(kCalls) + head_, delta);
    text_.finish(delta);
  }

 private:
  enum class Place { kText, kHead, kArguments };

  void take(char c, AnswerDelta& delta) {
    if (list_) {
      const std::string text(1, c);
      return list_->push(text, delta);
    }
    switch (place_) {
      case Place::kText: {
        std::string text;
        const std::string_view* found = marks_.take(c, text);
        text_.text(text, delta);
        if (found == nullptr) return;
        place_ = Place::kHead;
        head_.clear();
        return;
      }
      case Place::kHead:
        return take_head(c, delta);
      case Place::kArguments:
        return take_arguments(c, delta);
    }
  }

  void take_head(char c, AnswerDelta& delta) {
    head_ += c;
    const bool is_first = head_.find_first_not_of(" \n\t\r") == head_.size() - 1;
    if (is_first && c == '[' && call_ < 0) return begin_list(delta);
    if (c == '{') return begin_call(delta);
    if (head_.size() <= kMaxNameBytes && c != '\n') return;
    place_ = Place::kText;
    text_.text(std::string(kCalls) + head_, delta);
  }

  // The old way of writing: all that follows is read as lists are.
  void begin_list(AnswerDelta& delta) {
    list_ = make_json_parser({{kCalls}, {}}, tools_);
    list_->push(text_.take_blanks() + std::string(kCalls) + head_, delta);
  }

  void begin_call(AnswerDelta& delta) {
    head_.pop_back();
    std::string name = head_.substr(0, head_.find('['));
    while (!name.empty() && is_blank(name.back())) name.pop_back();
    name.erase(0, std::min(name.size(), name.find_first_not_of(" \t\r\n")));
    std::string id;
    if (const size_t at = head_.find(kId); at != std::string::npos) {
      id = head_.substr(at + kId.size());
      id = id.substr(0, id.find('['));
    }
    if (name.empty()) {
      place_ = Place::kText;
      return text_.text(std::string(kCalls) + head_ + "{", delta);
    }
    call_ = text_.call();
    CallDelta& call = delta_of(delta, call_);
    call.name = name;
    call.id = id;
    end_ = {};
    place_ = Place::kArguments;
    take_arguments('{', delta);
  }

  void take_arguments(char c, AnswerDelta& delta) {
    delta_of(delta, call_).arguments += c;
    if (end_.take(c) != JsonValueEnd::State::kGoing) place_ = Place::kText;
  }

  Json tools_;
  std::unique_ptr<ToolParser> list_;
  MarkerFinder marks_{{kCalls}};
  AnswerText text_;
  Place place_ = Place::kText;
  std::string head_;
  JsonValueEnd end_;
  int64_t call_ = -1;
};

std::unique_ptr<ToolParser> make(const Json& tools) { return std::make_unique<MistralParser>(tools); }

// Every model of the family can read lists; the newer ones write the other way by themselves.
Json structure(const std::vector<ToolShape>& tools, bool many) {
  return json_structure({"[TOOL_CALLS][", {}, "arguments", {}, ", ", "]"}, tools, many);
}

}  // namespace

const ToolFormat kMistral = {"mistral", {kCalls, kArguments, kId}, {kCalls}, make, structure};

}  // namespace coluber
