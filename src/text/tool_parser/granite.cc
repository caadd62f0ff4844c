// SPDX-License-Identifier: Apache-2.0
//
// Granite 3: <|tool_call|> in front of a list of {"name": ..., "arguments": {...}}; some say <tool_call>.
#include "text/tool_parser/marked_json.h"
#include "text/tool_parser/tool_formats.h"

namespace coluber {
namespace {

std::unique_ptr<ToolParser> make(const Json& tools) {
  return make_json_parser({{"<|tool_call|>", "<tool_call>"}, {}}, tools);
}

Json structure(const std::vector<ToolShape>& tools, bool many) {
  return json_structure({"<|tool_call|>[", {}, "arguments", {}, ", ", "]"}, tools, many);
}

}  // namespace

const ToolFormat kGranite = {"granite", {"<|tool_call|>", "<tool_call>"}, {"<|tool_call|>"}, make, structure};

}  // namespace coluber
