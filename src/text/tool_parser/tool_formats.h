// SPDX-License-Identifier: Apache-2.0
//
// The ways of writing calls, each defined in the file of its name. Constants.
#pragma once

#include "text/tool_parser/tool_parser.h"

namespace coluber {

extern const ToolFormat kHermes, kQwen3Xml, kLlama3Json, kMistral, kGranite, kNemotron, kKimi, kMiniMaxM1, kMiniMaxM2,
    kLfm2, kPlainJson;

}  // namespace coluber
