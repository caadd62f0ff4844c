// SPDX-License-Identifier: Apache-2.0
//
// Qwen3-Coder, Qwen 3.5, Nemotron 3: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>.
#include "text/grammar/structure.h"
#include "text/tool_parser/tool_formats.h"
#include "text/tool_parser/xml_calls.h"

namespace coluber {
namespace {

constexpr XmlStyle kStyle{
    "<tool_call>", "<function=", ">", "<parameter=", "</parameter>", "</function>", "</tool_call>"};

std::unique_ptr<ToolParser> make(const Json& tools) { return make_xml_parser(kStyle, tools); }

Json structure(const std::vector<ToolShape>& tools, bool many) {
  Json::Array tags;
  for (const ToolShape& tool : tools)
    tags.push_back(tag_format(fmt::format("<tool_call>\n<function={}>\n", tool.name),
                              schema_format(tool.parameters, "qwen_xml"), "\n</function>\n</tool_call>"));
  return tags_format(std::move(tags), "\n", many);
}

}  // namespace

const ToolFormat kQwen3Xml = {"qwen3_xml", {"<tool_call>", "</tool_call>"}, {"<function="}, make, structure};

}  // namespace coluber
