// SPDX-License-Identifier: Apache-2.0
//
// Calls as tags: a function with a tag for each argument, whose text is a value by the tool's own schema. Arguments
// come out one by one. One answer, one thread.
#pragma once

#include <memory>
#include <string_view>

#include "text/tool_parser/tool_parser.h"

namespace coluber {

struct XmlStyle {
  std::string_view begin;                // <tool_call>
  std::string_view call;                 // <function=, up to the name
  std::string_view named;                // what ends a name: > or ">
  std::string_view argument, value_end;  // <parameter= ... </parameter>
  std::string_view call_end, end;
};

std::unique_ptr<ToolParser> make_xml_parser(const XmlStyle& style, const Json& tools);

// The value that a tag's text stands for: what the schema of the argument says it is, or the text itself.
Json value_of_text(std::string_view text, const Json* schema);

}  // namespace coluber
