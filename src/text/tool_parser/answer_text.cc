// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/answer_text.h"

#include <algorithm>

namespace coluber {

const std::string_view* MarkerFinder::take(char c, std::string& text) {
  held_ += c;
  while (!held_.empty()) {
    for (const std::string_view& marker : markers_) {
      if (held_ != marker) continue;
      held_.clear();
      return &marker;
    }
    const bool begins = std::any_of(markers_.begin(), markers_.end(),
                                    [this](std::string_view marker) { return marker.starts_with(held_); });
    if (begins) return nullptr;
    text += held_.front();
    held_.erase(0, 1);
  }
  return nullptr;
}

void AnswerText::text(std::string_view more, AnswerDelta& delta) {
  for (const char c : more) {
    blanks_ += c;
    if (!is_blank(c)) delta.content += std::exchange(blanks_, {});
  }
}

void AnswerText::finish(AnswerDelta& delta) {
  if (num_calls_ == 0) delta.content += blanks_;
  blanks_.clear();
}

CallDelta& delta_of(AnswerDelta& delta, int64_t index) {
  if (delta.calls.empty() || delta.calls.back().index != index) delta.calls.push_back({index, {}, {}, {}});
  return delta.calls.back();
}

}  // namespace coluber
