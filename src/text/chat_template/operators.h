// SPDX-License-Identifier: Apache-2.0
//
// Python's binary operators, and slices. Integers that leave 64 bits are an error.
#pragma once

#include <optional>

#include "text/chat_template/ast.h"
#include "text/chat_template/value.h"

namespace coluber::jinja {

Value binary(Heap& heap, Op op, const Value& a, const Value& b);
bool compare(Op op, const Value& a, const Value& b);
Value negate(const Value& value);
Value plus(const Value& value);
// value[start:stop:step] of a string, list, tuple or range.
Value slice(Heap& heap, const Value& value, const std::optional<int64_t>& start, const std::optional<int64_t>& stop,
            const std::optional<int64_t>& step);
std::string escaped_html(std::string_view text);

}  // namespace coluber::jinja
