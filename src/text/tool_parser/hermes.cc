// SPDX-License-Identifier: Apache-2.0
//
// Hermes, Qwen 2.5 and 3, Granite 4: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one pair of marks a
// call.
#include "text/tool_parser/marked_json.h"
#include "text/tool_parser/tool_formats.h"

namespace coluber {
namespace {

std::unique_ptr<ToolParser> make(const Json& tools) {
  return make_json_parser({{"<tool_call>"}, "</tool_call>"}, tools);
}

Json structure(const std::vector<ToolShape>& tools, bool many) {
  return json_structure({{}, "<tool_call>\n", "arguments", "\n</tool_call>", "\n", {}}, tools, many);
}

}  // namespace

const ToolFormat kHermes = {"hermes", {"<tool_call>", "</tool_call>"}, {"<tool_call>"}, make, structure};

}  // namespace coluber
