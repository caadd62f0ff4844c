// SPDX-License-Identifier: Apache-2.0
//
// Llama 3: a bare {"name": ..., "parameters": {...}}, or one behind <|python_tag|>; several are apart by semicolons.
#include "text/tool_parser/marked_json.h"
#include "text/tool_parser/tool_formats.h"

namespace coluber {
namespace {

std::unique_ptr<ToolParser> make(const Json& tools) { return make_json_parser({{"<|python_tag|>"}, {}, true}, tools); }

Json structure(const std::vector<ToolShape>& tools, bool many) {
  return json_structure({{}, {}, "parameters", {}, "; ", {}}, tools, many);
}

}  // namespace

const ToolFormat kLlama3Json = {
    "llama3_json", {"<|python_tag|>"}, {"<|python_tag|>", "<|start_header_id|>"}, make, structure};

}  // namespace coluber
