// SPDX-License-Identifier: Apache-2.0
//
// The methods of Python's strings, lists, tuples and dictionaries. What would change a list or a dictionary is there,
// and refused, as in the sandbox in which chat templates run.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template/interpreter.h"
#include "text/chat_template/value.h"

namespace coluber::jinja {

bool has_method(const Value& self, std::string_view name) noexcept;
Value call_method(Interpreter& in, const Value& self, std::string_view name, const Args& args);

// Methods that would change a list or a dictionary, and what is said of their use.
bool changes_object(const Value& self, std::string_view name) noexcept;
std::string unsafe_message(const Value& self, std::string_view name);

bool has_string_method(std::string_view name) noexcept;
Value call_string_method(Interpreter& in, const Value& self, std::string_view name, const Args& args);

// Shared with filters: strip(chars) on both sides or one, split into lines, Python's replace.
enum class Side { kBoth, kLeft, kRight };
Value strip(Heap& heap, const Text& text, const Value* chars, Side side);
std::vector<std::pair<size_t, size_t>> line_spans(std::string_view text, bool keep_ends);
Value replace(Heap& heap, const Text& text, std::string_view from, const Text& to, int64_t count);
Value center(Heap& heap, const Text& text, int64_t width, std::string_view fill,
             int where);  // -1 left, 0 center, 1 right

}  // namespace coluber::jinja
