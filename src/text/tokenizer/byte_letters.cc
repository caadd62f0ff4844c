// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>

#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

// Printable bytes of Latin-1 stand for themselves; the others get U+0100 and up, in order.
struct ByteLetters {
  std::array<char, 512> letters{};     // two bytes a letter; the second is 0 for ASCII
  std::array<int16_t, 0x144> bytes{};  // by code point, -1 where it is no letter
};

ByteLetters make_letters() {
  ByteLetters table;
  table.bytes.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const uint32_t code_point = printable ? byte : next++;
    std::string text;
    append_utf8(text, code_point);
    table.letters[2 * byte] = text[0];
    table.letters[2 * byte + 1] = text.size() > 1 ? text[1] : '\0';
    table.bytes[code_point] = static_cast<int16_t>(byte);
  }
  return table;
}

const ByteLetters& byte_letters() {
  static const ByteLetters table = make_letters();
  return table;
}

}  // namespace

void append_byte_letters(std::string& out, std::string_view bytes) {
  const ByteLetters& table = byte_letters();
  for (const char byte : bytes) {
    const char* letter = &table.letters[2 * static_cast<size_t>(static_cast<unsigned char>(byte))];
    out.push_back(letter[0]);
    if (letter[1] != '\0') out.push_back(letter[1]);
  }
}

bool append_letter_bytes(std::string& out, std::string_view letters) {
  const ByteLetters& table = byte_letters();
  const size_t before = out.size();
  const char* at = letters.data();
  const char* end = at + letters.size();
  while (at < end) {
    const uint32_t code_point = next_code_point(at);
    const int byte = code_point < table.bytes.size() ? table.bytes[code_point] : -1;
    if (byte < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace coluber
