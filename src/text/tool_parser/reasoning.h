// SPDX-License-Identifier: Apache-2.0
//
// What a model thinks before it answers, between two marks at the beginning of its answer. Where the prompt's last mark
// has opened it the answer begins inside. One answer, one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tool_parser/answer_text.h"

namespace coluber {

struct ReasoningFormat {
  std::string_view name, begin, end;
};

const std::vector<ReasoningFormat>& reasoning_formats();
const ReasoningFormat* find_reasoning_format(std::string_view name);             // null where there is none
const ReasoningFormat* detect_reasoning_format(std::string_view chat_template);  // likewise
// Whether the prompt ends inside of what is thought.
bool is_reasoning_open(const ReasoningFormat& format, std::string_view prompt);

class ReasoningParser {
 public:
  ReasoningParser(const ReasoningFormat& format, bool open);
  // What is thought goes to the delta, what is answered to `answer`.
  void push(std::string_view text, AnswerDelta& delta, std::string& answer);
  void finish(AnswerDelta& delta, std::string& answer);

 private:
  enum class Place { kStart, kInside, kBehind, kAnswer };
  void take(char c, AnswerDelta& delta, std::string& answer);
  void think(std::string_view text, AnswerDelta& delta);

  const ReasoningFormat& format_;
  Place place_;
  MarkerFinder end_;
  std::string held_;    // blanks and the beginning of a mark at the start
  std::string blanks_;  // behind the last thought
  bool has_thought_ = false;
};

}  // namespace coluber
