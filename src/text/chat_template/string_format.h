// SPDX-License-Identifier: Apache-2.0
//
// Python's two ways of formatting: "..." % values and "...".format(values).
#pragma once

#include <string>
#include <string_view>

#include "text/chat_template/interpreter.h"
#include "text/chat_template/value.h"

namespace coluber::jinja {

std::string percent_format(Heap& heap, std::string_view format, const Value& values);
std::string brace_format(Interpreter& in, std::string_view format, const Args& args);

}  // namespace coluber::jinja
