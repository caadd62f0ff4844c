// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 and the character properties that tokenizers ask for, in the Unicode versions of the reference
// (unicode_tables.h). unicode.cc is the only file that sees utf8proc. Functions that take a `const char*` cursor expect
// valid UTF-8; `sanitize_utf8` makes it so. No state; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace coluber {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Length of the character that starts with this byte of a valid text.
inline size_t utf8_char_bytes(char first) noexcept {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Reads the character at `at` (valid UTF-8) and moves past it.
inline uint32_t next_code_point(const char*& at) noexcept {
  const auto* bytes = reinterpret_cast<const unsigned char*>(at);
  const uint32_t first = bytes[0];
  if (first < 0x80) {
    at += 1;
    return first;
  }
  if (first < 0xE0) {
    at += 2;
    return (first & 0x1F) << 6 | (bytes[1] & 0x3Fu);
  }
  if (first < 0xF0) {
    at += 3;
    return (first & 0x0F) << 12 | (bytes[1] & 0x3Fu) << 6 | (bytes[2] & 0x3Fu);
  }
  at += 4;
  return (first & 0x07) << 18 | (bytes[1] & 0x3Fu) << 12 | (bytes[2] & 0x3Fu) << 6 | (bytes[3] & 0x3Fu);
}

void append_utf8(std::string& out, uint32_t code_point);
// Replaces every maximal broken part by U+FFFD. With `final` false a character that the end cuts off is left in `rest`.
std::string sanitize_utf8(std::string_view text, bool final = true, std::string* rest = nullptr);

// Two letters, "Lu" .. "Cn", of Unicode 16.
const char* category(uint32_t code_point) noexcept;
bool is_letter(uint32_t code_point) noexcept;
bool is_number(uint32_t code_point) noexcept;             // N*
bool is_whitespace(uint32_t code_point) noexcept;         // White_Space
bool is_word(uint32_t code_point) noexcept;               // \w of the reference's Whitespace split and of single_word
bool is_mark(uint32_t code_point) noexcept;               // as StripAccents sees it
bool is_nonspacing_mark(uint32_t code_point) noexcept;    // as BertNormalizer sees it
bool is_punctuation(uint32_t code_point) noexcept;        // ASCII punctuation and P*
bool is_control_or_format(uint32_t code_point) noexcept;  // Cc, Cf, Co
void append_lower(std::string& out, uint32_t code_point);

std::string normalize(std::string_view text, NormalForm form);
// Ends of the extended grapheme clusters of a valid text, in bytes.
void grapheme_ends(std::string_view text, std::vector<size_t>& ends);

}  // namespace coluber
