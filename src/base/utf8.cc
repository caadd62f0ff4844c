// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace coluber {

size_t check_utf8_character(std::string_view text, size_t& broken, bool& cut) noexcept {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  broken = 1;
  cut = false;
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i >= text.size()) {
      broken = i;
      cut = true;
      return 0;
    }
    unsigned char low = 0x80;
    unsigned char high = 0xBF;
    if (i == 1) {
      if (first == 0xE0) low = 0xA0;
      if (first == 0xED) high = 0x9F;
      if (first == 0xF0) low = 0x90;
      if (first == 0xF4) high = 0x8F;
    }
    if (byte(i) < low || byte(i) > high) {
      broken = i;
      return 0;
    }
  }
  return length;
}

bool is_ascii(std::string_view text) noexcept {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) return false;
  }
  for (; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) >= 0x80) return false;
  }
  return true;
}

size_t valid_utf8_prefix(std::string_view text) noexcept {
  size_t at = 0;
  while (at < text.size()) {
    if (at + 8 <= text.size() && is_ascii(text.substr(at, 8))) {
      at += 8;
      continue;
    }
    size_t broken;
    bool cut;
    const size_t length = check_utf8_character(text.substr(at), broken, cut);
    if (length == 0) break;
    at += length;
  }
  return at;
}

bool is_valid_utf8(std::string_view text) noexcept { return valid_utf8_prefix(text) == text.size(); }

}  // namespace coluber
