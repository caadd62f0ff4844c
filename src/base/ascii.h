// SPDX-License-Identifier: Apache-2.0
//
// Letters and digits of ASCII, whatever the locale. Bytes beyond ASCII are neither and stay as they are. No state;
// thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace coluber::ascii {

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
constexpr bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

inline std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = lower(c);
  return result;
}

}  // namespace coluber::ascii
