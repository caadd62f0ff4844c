// SPDX-License-Identifier: Apache-2.0
//
// What all parsers of calls share: text goes out as content, but for blanks beside calls where no more text follows,
// and markers are found however the text is cut. One answer, one thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tool_parser/tool_parser.h"

namespace coluber {

inline bool is_blank(char c) noexcept { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Finds the first of several markers, one character at a time.
class MarkerFinder {
 public:
  explicit MarkerFinder(std::vector<std::string_view> markers) : markers_(std::move(markers)) {}

  // The marker that ends with `c`, or null; what cannot be part of one any more is appended to `text`.
  const std::string_view* take(char c, std::string& text);
  std::string rest() { return std::exchange(held_, {}); }

 private:
  std::vector<std::string_view> markers_;
  std::string held_;  // the beginning of a marker
};

class AnswerText {
 public:
  void text(std::string_view more, AnswerDelta& delta);
  // A call begins; its index.
  int64_t call() noexcept { return num_calls_++; }
  void finish(AnswerDelta& delta);
  // What is held back, for whoever reads on.
  std::string take_blanks() { return std::exchange(blanks_, {}); }

 private:
  std::string blanks_;  // behind the last text
  int64_t num_calls_ = 0;
};

// The arguments of call `index`, or its name, appended to the delta.
CallDelta& delta_of(AnswerDelta& delta, int64_t index);

}  // namespace coluber
