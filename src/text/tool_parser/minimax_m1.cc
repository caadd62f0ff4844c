// SPDX-License-Identifier: Apache-2.0
//
// MiniMax M1: <tool_calls>, a line of {"name": ..., "arguments": {...}} for each call, </tool_calls>.
#include "text/tool_parser/marked_json.h"
#include "text/tool_parser/tool_formats.h"

namespace coluber {
namespace {

std::unique_ptr<ToolParser> make(const Json& tools) {
  return make_json_parser({{"<tool_calls>"}, "</tool_calls>"}, tools);
}

Json structure(const std::vector<ToolShape>& tools, bool many) {
  return json_structure({"<tool_calls>\n", {}, "arguments", {}, "\n", "\n</tool_calls>"}, tools, many);
}

}  // namespace

const ToolFormat kMiniMaxM1 = {"minimax_m1", {"<tool_calls>", "</tool_calls>"}, {"<tool_calls>"}, make, structure};

}  // namespace coluber
