// SPDX-License-Identifier: Apache-2.0
//
// Nemotron Nano 2: <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>.
#include "text/tool_parser/marked_json.h"
#include "text/tool_parser/tool_formats.h"

namespace coluber {
namespace {

std::unique_ptr<ToolParser> make(const Json& tools) { return make_json_parser({{"<TOOLCALL>"}, "</TOOLCALL>"}, tools); }

Json structure(const std::vector<ToolShape>& tools, bool many) {
  return json_structure({"<TOOLCALL>[", {}, "arguments", {}, ", ", "]</TOOLCALL>"}, tools, many);
}

}  // namespace

const ToolFormat kNemotron = {"nemotron", {"<TOOLCALL>", "</TOOLCALL>"}, {"<TOOLCALL>"}, make, structure};

}  // namespace coluber
