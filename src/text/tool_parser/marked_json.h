// SPDX-License-Identifier: Apache-2.0
//
// Calls as JSON objects, alone or in lists, between markers or (where a style has none) anywhere in the text: what most
// families write. One answer, one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_parser/tool_parser.h"

namespace coluber {

struct JsonStyle {
  std::vector<std::string_view> begins;  // markers in front of calls; none: calls stand bare, of known tools alone
  std::string_view end;                  // behind them; empty: they end with their JSON
  bool takes_bare = false;               // calls of known tools stand bare too
};

std::unique_ptr<ToolParser> make_json_parser(JsonStyle style, const Json& tools);

// How a grammar enforces it: `open`, calls apart by `separator`, `close`. `key` is what arguments are called.
struct JsonShape {
  std::string_view open, call_open, key, call_close, separator, close;
};
Json json_structure(const JsonShape& shape, const std::vector<ToolShape>& tools, bool many);

// The names of the tools of a request.
std::vector<std::string> tool_names(const Json& tools);

}  // namespace coluber
