// SPDX-License-Identifier: Apache-2.0
//
// Writes JSON values as text: the code behind Json::dump. Keeps open containers on a stack of its own, so that no depth
// of a value can exhaust the stack of calls.
#pragma once

#include <string>

#include "base/json.h"

namespace coluber {

std::string write_json(const Json& value, int indent, bool ascii);
// `text` in quotes, escaped; invalid UTF-8 becomes U+FFFD, non-ASCII text \u escapes where `ascii`.
void write_json_string(std::string_view text, bool ascii, std::string& out);

}  // namespace coluber
