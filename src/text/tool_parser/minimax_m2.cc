// SPDX-License-Identifier: Apache-2.0
//
// MiniMax M2: <minimax:tool_call><invoke name="NAME"><parameter
// name="KEY">VALUE</parameter></invoke></minimax:tool_call>, with several calls inside.
#include "text/grammar/structure.h"
#include "text/tool_parser/tool_formats.h"
#include "text/tool_parser/xml_calls.h"

namespace coluber {
namespace {

constexpr XmlStyle kStyle{"<minimax:tool_call>", "<invoke name=\"",     "\">", "<parameter name=\"", "</parameter>",
                          "</invoke>",           "</minimax:tool_call>"};

std::unique_ptr<ToolParser> make(const Json& tools) { return make_xml_parser(kStyle, tools); }

Json structure(const std::vector<ToolShape>& tools, bool many) {
  Json::Array tags;
  for (const ToolShape& tool : tools)
    tags.push_back(tag_format(fmt::format("<invoke name=\"{}\">\n", tool.name),
                              schema_format(tool.parameters, "minimax_xml"), "\n</invoke>"));
  return sequence_format({literal_format("<minimax:tool_call>\n"), tags_format(std::move(tags), "\n", many),
                          literal_format("\n</minimax:tool_call>")});
}

}  // namespace

const ToolFormat kMiniMaxM2 = {
    "minimax_m2", {"<minimax:tool_call>", "</minimax:tool_call>"}, {"<minimax:tool_call>"}, make, structure};

}  // namespace coluber
