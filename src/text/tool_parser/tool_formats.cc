// SPDX-License-Identifier: Apache-2.0
#include "text/tool_parser/tool_formats.h"

#include <algorithm>

namespace coluber {

// In the order in which templates are asked: what others might hold too comes late.
const std::vector<const ToolFormat*>& tool_formats() {
  static const std::vector<const ToolFormat*> all{&kMiniMaxM2, &kKimi,       &kNemotron, &kLfm2,
                                                  &kQwen3Xml,  &kMiniMaxM1,  &kMistral,  &kGranite,
                                                  &kHermes,    &kLlama3Json, &kPlainJson};
  return all;
}

const ToolFormat* find_tool_format(std::string_view name) {
  const auto& all = tool_formats();
  const auto found = std::find_if(all.begin(), all.end(), [name](const ToolFormat* f) { return f->name == name; });
  return found == all.end() ? nullptr : *found;
}

const ToolFormat* detect_tool_format(std::string_view chat_template) {
  if (chat_template.find("tools") == std::string_view::npos) return nullptr;
  for (const ToolFormat* format : tool_formats()) {
    for (const std::string_view sign : format->signs)
      if (chat_template.find(sign) != std::string_view::npos) return format;
  }
  return &kPlainJson;
}

}  // namespace coluber
