// SPDX-License-Identifier: Apache-2.0
//
// The filters (`value | name(...)`) and tests (`value is name(...)`) by name. Filters whose result is random or which
// chat templates have no use for are known, and refused when they are reached.
#pragma once

#include <string>
#include <string_view>

#include "text/chat_template/interpreter.h"
#include "text/chat_template/value.h"

namespace coluber::jinja {

bool has_filter(std::string_view name) noexcept;
bool has_test(std::string_view name) noexcept;
Value call_filter(Interpreter& in, std::string_view name, const Value& value, const Args& args);
bool call_test(Interpreter& in, std::string_view name, const Value& value, const Args& args);

// A filter as filters_text.cc and filters_sequence.cc write it; the tables are put together in filters.cc.
struct Filter {
  std::string_view name;
  Value (*function)(Interpreter& in, const Value& value, const Args& args);
};
struct FilterTable {
  const Filter* begin;
  const Filter* end;
};
FilterTable text_filters() noexcept;
FilterTable number_filters() noexcept;
FilterTable sequence_filters() noexcept;
FilterTable selection_filters() noexcept;

// Jinja's make_attrgetter: "a.b.0" or an integer, followed part by part.
Value follow_attribute(Interpreter& in, Value value, const Value& path, const Value* fallback = nullptr);
Value ignore_case(Heap& heap, const Value& value);  // strings in lower case, all else as it is

}  // namespace coluber::jinja
