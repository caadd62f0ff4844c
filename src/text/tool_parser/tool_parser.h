// SPDX-License-Identifier: Apache-2.0
//
// Calls of tools in what a model says, as each family writes them. A ToolFormat knows one way of writing: how to read
// it as it streams, and how a grammar enforces it. What is no call stays text, before, between and behind calls; a call
// that turns out to be none becomes text again. However the text is cut, all deltas together are the same. A parser
// belongs to one answer and one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace coluber {

struct CallDelta {
  int64_t index = 0;      // of the call in its answer
  std::string name;       // in the first delta of a call
  std::string id;         // likewise, where the model gives one
  std::string arguments;  // what to append: JSON, once the call has ended
};

struct AnswerDelta {
  std::string reasoning, content;
  std::vector<CallDelta> calls;

  bool empty() const noexcept { return reasoning.empty() && content.empty() && calls.empty(); }
};

class ToolParser {
 public:
  virtual ~ToolParser() = default;
  virtual void push(std::string_view text, AnswerDelta& delta) = 0;
  virtual void finish(AnswerDelta& delta) = 0;  // nothing follows
};

// A tool as grammars need it.
struct ToolShape {
  std::string name;
  Json parameters;  // the schema of its arguments
};

struct ToolFormat {
  std::string_view name;
  // Texts around calls. Where the vocabulary has them as special tokens they must not be left out of the text.
  std::vector<std::string_view> markers;
  // A model whose chat template holds one of these writes so.
  std::vector<std::string_view> signs;
  // `tools`: the request's, in OpenAI's shape.
  std::unique_ptr<ToolParser> (*make)(const Json& tools);
  // XGrammar's format of one call or, where `many`, of several, of these tools.
  Json (*structure)(const std::vector<ToolShape>& tools, bool many);
};

const std::vector<const ToolFormat*>& tool_formats();
const ToolFormat* find_tool_format(std::string_view name);  // null where there is none
// Null where the template has no place for tools.
const ToolFormat* detect_tool_format(std::string_view chat_template);

}  // namespace coluber
