// SPDX-License-Identifier: Apache-2.0
//
// The functions that every chat template finds: range, namespace, dict, cycler, joiner, raise_exception, strftime_now.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "text/chat_template/interpreter.h"

namespace coluber::jinja {

std::span<const std::string_view> global_names() noexcept;
Value call_global(Interpreter& in, std::string_view name, const Args& args);
// strftime in the C locale of a local time, given as seconds since 1970 on that clock.
std::string format_time(Heap& heap, std::string_view format, int64_t clock);

}  // namespace coluber::jinja
