// SPDX-License-Identifier: Apache-2.0
//
// One answer of a conversation as it streams: what is thought, what is said, which tools are called. One thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/tool_parser/reasoning.h"
#include "text/tool_parser/tool_parser.h"

namespace coluber {

struct AnswerReading {
  const ReasoningFormat* reasoning = nullptr;  // null: nothing is thought
  bool reasoning_open = false;                 // by the prompt
  const ToolFormat* calls = nullptr;           // null: no calls are looked for
  Json tools;                                  // of the request
  bool one_call = false;                       // further calls are left out

  bool is_plain() const noexcept { return reasoning == nullptr && calls == nullptr; }
};

class AnswerReader {
 public:
  explicit AnswerReader(const AnswerReading& reading);
  // `ends`: nothing follows.
  AnswerDelta push(std::string_view text, bool ends);

 private:
  std::optional<ReasoningParser> reasoning_;
  std::unique_ptr<ToolParser> calls_;
  bool one_call_;
};

}  // namespace coluber
