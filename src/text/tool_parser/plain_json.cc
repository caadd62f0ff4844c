// SPDX-License-Identifier: Apache-2.0
//
// Any model: {"name": ..., "arguments": {...}} of a tool that the request has, anywhere in the text, alone or in a
// list.
#include "text/tool_parser/marked_json.h"
#include "text/tool_parser/tool_formats.h"

namespace coluber {
namespace {

std::unique_ptr<ToolParser> make(const Json& tools) { return make_json_parser({{}, {}}, tools); }

Json structure(const std::vector<ToolShape>& tools, bool many) {
  return json_structure({{}, {}, "arguments", {}, "\n", {}}, tools, many);
}

}  // namespace

const ToolFormat kPlainJson = {"json", {}, {}, make, structure};

}  // namespace coluber
