// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/reasoning.h"

#include <algorithm>

namespace coluber {

const std::vector<ReasoningFormat>& reasoning_formats() {
  static const std::vector<ReasoningFormat> all{{"think", "<think>", "</think>"},
                                                {"mistral", "[THINK]", "[/THINK]"},
                                                {"seed_oss", "<seed:think>", "</seed:think>"}};
  return all;
}

const ReasoningFormat* find_reasoning_format(std::string_view name) {
  const auto& all = reasoning_formats();
  const auto found = std::find_if(all.begin(), all.end(), [name](const ReasoningFormat& f) { return f.name == name; });
  return found == all.end() ? nullptr : &*found;
}

const ReasoningFormat* detect_reasoning_format(std::string_view chat_template) {
  for (const ReasoningFormat& format : reasoning_formats())
    if (chat_template.find(format.begin) != std::string_view::npos ||
        chat_template.find(format.end) != std::string_view::npos)
      return &format;
  return nullptr;
}

bool is_reasoning_open(const ReasoningFormat& format, std::string_view prompt) {
  while (!prompt.empty() && is_blank(prompt.back())) prompt.remove_suffix(1);
  return prompt.ends_with(format.begin);
}

ReasoningParser::ReasoningParser(const ReasoningFormat& format, bool open)
    : format_(format), place_(open ? Place::kInside : Place::kStart), end_({format.end}) {}

// Blanks around what is thought are not told.
void ReasoningParser::think(std::string_view text, AnswerDelta& delta) {
  for (const char c : text) {
    blanks_ += c;
    if (is_blank(c)) continue;
    if (!has_thought_) blanks_.assign(1, c);
    has_thought_ = true;
    delta.reasoning += std::exchange(blanks_, {});
  }
}

void ReasoningParser::take(char c, AnswerDelta& delta, std::string& answer) {
  std::string text;
  switch (place_) {
    case Place::kStart: {
      held_ += c;
      const size_t begin = held_.find_first_not_of(" \n\t\r");
      if (begin == std::string::npos) return;
      const std::string_view mark = std::string_view(held_).substr(begin);
      if (mark == format_.begin) {
        held_.clear();
        place_ = Place::kInside;
      } else if (!format_.begin.starts_with(mark)) {
        answer += std::exchange(held_, {});
        place_ = Place::kAnswer;
      }
      return;
    }
    case Place::kInside: {
      const bool ended = end_.take(c, text) != nullptr;
      think(text, delta);
      if (ended) place_ = Place::kBehind;
      return;
    }
    case Place::kBehind:
      if (is_blank(c)) return;
      place_ = Place::kAnswer;
      break;
    case Place::kAnswer:
      break;
  }
  answer += c;
}

void ReasoningParser::push(std::string_view text, AnswerDelta& delta, std::string& answer) {
  for (const char c : text) take(c, delta, answer);
}

void ReasoningParser::finish(AnswerDelta& delta, std::string& answer) {
  answer += std::exchange(held_, {});
  if (place_ == Place::kInside) think(end_.rest(), delta);
}

}  // namespace coluber
