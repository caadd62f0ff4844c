// SPDX-License-Identifier: Apache-2.0
//
// Python's json.dumps, which `tojson` is in chat templates: no HTML escaping, floats as Python prints them, keys turned
// into strings. (Json::dump serves files and protocols and prints otherwise.)
#pragma once

#include <optional>
#include <string>

#include "text/chat_template/value.h"

namespace coluber::jinja {

struct JsonDumpOptions {
  bool ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};

std::string dump_json(Heap& heap, const Value& value, const JsonDumpOptions& options);

}  // namespace coluber::jinja
