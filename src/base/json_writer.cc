// SPDX-License-Identifier: Apache-2.0
#include "base/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

namespace coluber {
namespace {

constexpr uint32_t kInvalid = 0xffffffffU;

// Decodes one character; a maximal wrong part gives kInvalid. `length` is what was consumed, at least 1.
uint32_t decode_utf8(std::string_view text, size_t* length) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const uint32_t first = byte(0);
  *length = 1;
  if (first < 0x80) return first;
  const int more = first >= 0xc2 && first <= 0xdf   ? 1
                   : (first & 0xf0) == 0xe0         ? 2
                   : first >= 0xf0 && first <= 0xf4 ? 3
                                                    : 0;
  if (more == 0) return kInvalid;
  // The second byte's range shuts out overlong forms, surrogates and what lies beyond U+10FFFF.
  const uint32_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint32_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  uint32_t code = first & (0x3fU >> more);
  for (int i = 1; i <= more; ++i) {
    const uint32_t next = byte(static_cast<size_t>(i));
    if (next < (i == 1 ? low : 0x80U) || next > (i == 1 ? high : 0xbfU)) return kInvalid;
    code = (code << 6) | (next & 0x3f);
    *length = static_cast<size_t>(i) + 1;
  }
  return code;
}

void append_escape(uint32_t unit, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHex[(unit >> shift) & 0xf];
}

void append_code_escape(uint32_t code, std::string& out) {
  if (code >= 0x10000) {
    append_escape(0xd800 + ((code - 0x10000) >> 10), out);
    append_escape(0xdc00 + ((code - 0x10000) & 0x3ff), out);
  } else {
    append_escape(code, out);
  }
}

void append_ascii(char c, std::string& out) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  if (static_cast<unsigned char>(c) < 0x20) {
    append_escape(static_cast<unsigned char>(c), out);
  } else {
    out += c;
  }
}

void append_double(double value, std::string& out) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 32> buffer{};
  const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  const std::string_view text(buffer.data(), static_cast<size_t>(written.ptr - buffer.data()));
  out += text;
  // Read back it must be a double again, not an integer.
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void append_scalar(const Json& value, bool ascii, std::string& out) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_int()) {
    out += std::to_string(value.as_int());
  } else if (value.is_string()) {
    write_json_string(value.as_string(), ascii, out);
  } else {
    append_double(value.as_double(), out);
  }
}

void append_line(int indent, size_t depth, std::string& out) {
  if (indent < 0) return;
  out += '\n';
  out.append(depth * static_cast<size_t>(indent), ' ');
}

}  // namespace

void write_json_string(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    size_t length = 1;
    const uint32_t code = decode_utf8(text.substr(i), &length);
    if (code < 0x80) {
      append_ascii(text[i], out);
    } else if (ascii) {
      append_code_escape(code == kInvalid ? 0xfffd : code, out);
    } else if (code == kInvalid) {
      out += "\xef\xbf\xbd";
    } else {
      out += text.substr(i, length);
    }
    i += length;
  }
  out += '"';
}

std::string write_json(const Json& value, int indent, bool ascii) {
  struct Open {
    const Json* container;
    size_t next;
  };
  std::string out;
  std::vector<Open> open;
  const auto begin = [&](const Json& item) {
    if (!item.is_array() && !item.is_object()) return append_scalar(item, ascii, out);
    out += item.is_array() ? '[' : '{';
    open.push_back({&item, 0});
  };
  begin(value);
  while (!open.empty()) {
    const Json& container = *open.back().container;
    const size_t i = open.back().next++;
    const size_t size = container.is_array() ? container.as_array().size() : container.as_object().size();
    if (i == size) {
      open.pop_back();
      if (size > 0) append_line(indent, open.size(), out);
      out += container.is_array() ? ']' : '}';
      continue;
    }
    if (i > 0) out += ',';
    append_line(indent, open.size(), out);
    if (container.is_array()) {
      begin(container.as_array()[i]);
    } else {
      const Json::Member& member = container.as_object()[i];
      write_json_string(member.first, ascii, out);
      out += indent < 0 ? ":" : ": ";
      begin(member.second);
    }
  }
  return out;
}

}  // namespace coluber
