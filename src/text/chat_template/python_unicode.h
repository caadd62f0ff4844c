// SPDX-License-Identifier: Apache-2.0
//
// Python's classes and cases of characters (Unicode 14, that of Python 3.11), from tables of its own data: what Python
// calls a space, a digit or printable is not what Unicode's properties say, so the tokenizers' tables cannot serve. No
// state.
#pragma once

#include <string>
#include <string_view>

namespace coluber::jinja {

bool is_space(char32_t c) noexcept;
bool is_alpha(char32_t c) noexcept;
bool is_decimal(char32_t c) noexcept;
bool is_digit(char32_t c) noexcept;
bool is_numeric(char32_t c) noexcept;
bool is_alnum(char32_t c) noexcept;
bool is_printable(char32_t c) noexcept;
bool is_lower(char32_t c) noexcept;
bool is_upper(char32_t c) noexcept;
bool is_title(char32_t c) noexcept;

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);       // str.title
std::string capitalize(std::string_view text);  // str.capitalize
std::string swap_case(std::string_view text);

std::string_view strip_left(std::string_view text) noexcept;
std::string_view strip_right(std::string_view text) noexcept;

}  // namespace coluber::jinja
