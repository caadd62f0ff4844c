// SPDX-License-Identifier: Apache-2.0
//
// What Python does with values: truth, equality, order, hashing, printing, iteration. No template syntax here.
// Functions throw Fault with Python's own words where Python would raise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/chat_template/value.h"

namespace coluber::jinja {

inline constexpr int kMaxValueDepth = 400;

std::string_view type_name(const Value& value) noexcept;  // "str", "NoneType", ...
std::string object_repr(const Value& value);              // "str object", "None": jinja's word in messages
bool truthy(const Value& value);
bool equal(const Value& a, const Value& b, int depth = 0);
bool less(const Value& a, const Value& b, std::string_view op = "<");  // for > pass (b, a, ">")
bool less_equal(const Value& a, const Value& b, std::string_view op = "<=");
size_t hash_of(const Value& value);  // throws for unhashable types
bool contains(const Value& haystack, const Value& needle);

// str() and repr(). The heap limits their size.
void append_str(Text* out, const Value& value, Heap& heap);
void append_repr(std::string* out, const Value& value, Heap& heap, int depth = 0);
std::string to_str(const Value& value, Heap& heap);
std::string to_repr(const Value& value, Heap& heap);
std::string string_repr(std::string_view text);
std::string float_repr(double value);
bool any_input(const Value& value);  // whether text of the conversation is in it

// The elements, consuming an iterator. A string's are its characters. Throws "'int' object is not iterable".
Values iterate(const Value& value, Heap& heap);
bool is_iterable(const Value& value) noexcept;
// len(); throws where Python would.
int64_t length_of(const Value& value);

// Integers: Python's are unbounded, ours end with an error.
int64_t checked_add(int64_t a, int64_t b);
int64_t checked_sub(int64_t a, int64_t b);
int64_t checked_mul(int64_t a, int64_t b);

// Like string::find, in linear time whatever the texts are.
size_t find_text(std::string_view text, std::string_view needle, size_t from = 0) noexcept;
// string::rfind, which is not: its worst case is charged beforehand.
size_t find_last_text(Heap& heap, std::string_view text, std::string_view needle);

// UTF-8 by characters.
int64_t char_count(std::string_view text) noexcept;
size_t char_offset(std::string_view text, int64_t index) noexcept;  // bytes before character `index`, at most the size
size_t char_size(std::string_view text, size_t at) noexcept;        // bytes of the character at `at`
char32_t decode_char(std::string_view text, size_t* at) noexcept;   // and moves on
void append_char(std::string* out, char32_t c);
size_t first_invalid_utf8(std::string_view text) noexcept;  // or npos

}  // namespace coluber::jinja
