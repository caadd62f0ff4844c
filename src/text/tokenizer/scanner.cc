// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/scanner.h"

#include <array>
#include <cstdint>
#include <limits>

#include "base/ascii.h"
#include "text/tokenizer/unicode.h"

namespace coluber {
namespace {

enum Kind : uint8_t { kOther, kLetter, kNumber, kSpace, kNone };

constexpr std::array<Kind, 128> make_ascii_kinds() {
  std::array<Kind, 128> kinds{};
  for (size_t c = 0; c < 128; ++c) {
    const char byte = static_cast<char>(c);
    kinds[c] = ascii::is_letter(byte)            ? kLetter
               : ascii::is_digit(byte)           ? kNumber
               : c == ' ' || (c >= 9 && c <= 13) ? kSpace
                                                 : kOther;
  }
  return kinds;
}

constexpr std::array<Kind, 128> kAsciiKinds = make_ascii_kinds();

Kind wide_kind(const char*& at) noexcept {
  const uint32_t code_point = next_code_point(at);
  const char* name = category(code_point);
  if (name[0] == 'L') return kLetter;
  if (name[0] == 'N') return kNumber;
  return is_whitespace(code_point) ? kSpace : kOther;
}

// The kind of the character at `at`, and past it; kNone at the end.
inline Kind read_kind(const char*& at, const char* end) noexcept {
  if (at == end) return kNone;
  const auto byte = static_cast<unsigned char>(*at);
  if (byte < 0x80) {
    ++at;
    return kAsciiKinds[byte];
  }
  return wide_kind(at);
}

inline const char* skip(const char* at, const char* end, Kind kind) noexcept {
  while (true) {
    const char* next = at;
    if (read_kind(next, end) != kind) return at;
    at = next;
  }
}

// The end of 's, 't, 're, 've, 'm, 'll or 'd at `at`, or null. Without case, U+017F is an s too.
const char* contraction(const char* at, const char* end, bool caseless) noexcept {
  if (end - at < 2 || *at != '\'') return nullptr;
  const char first = caseless ? ascii::lower(at[1]) : at[1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if (end - at < 3) return nullptr;
  if (caseless && at[1] == '\xC5' && at[2] == '\xBF') return at + 3;
  const char second = caseless ? ascii::lower(at[2]) : at[2];
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return at + 3;
  return nullptr;
}

// \s+(?!\S)|\s+ : the run without its last character, unless it ends the text or has only that one.
const char* spaces(const char* at, const char* end) noexcept {
  const char* last = at;
  const char* stop = at;
  while (true) {
    const char* next = stop;
    if (read_kind(next, end) != kSpace) break;
    last = stop;
    stop = next;
  }
  return stop == end || last == at ? stop : last;
}

const char* next_gpt2(const char* at, const char* end) noexcept {
  if (const char* stop = contraction(at, end, false)) return stop;
  const char* next = at;
  Kind kind = read_kind(next, end);
  if (*at == ' ') {
    const char* after = next;
    const Kind following = read_kind(after, end);
    if (following != kSpace && following != kNone) {
      kind = following;
      next = after;
    }
  }
  return kind == kSpace ? spaces(at, end) : skip(next, end, kind);
}

const char* skip_newlines(const char* at, const char* end) noexcept {
  while (at < end && (*at == '\r' || *at == '\n')) ++at;
  return at;
}

// \s*[\r\n]+|\s+(?!\S)|\s+
const char* spaces_or_lines(const char* at, const char* end) noexcept {
  const char* line_end = nullptr;
  const char* stop = at;
  while (true) {
    const char* next = stop;
    if (read_kind(next, end) != kSpace) break;
    if (*stop == '\r' || *stop == '\n') line_end = next;
    stop = next;
  }
  return line_end != nullptr ? line_end : spaces(at, end);
}

const char* next_cl100k(const char* at, const char* end, size_t max_digits) noexcept {
  if (const char* stop = contraction(at, end, true)) return stop;
  const char* next = at;
  const Kind kind = read_kind(next, end);
  if (kind == kLetter) return skip(next, end, kLetter);
  if (kind == kNumber) {
    for (size_t count = 1; count < max_digits; ++count) {
      const char* after = next;
      if (read_kind(after, end) != kNumber) break;
      next = after;
    }
    return next;
  }
  const char* after = next;
  const Kind following = read_kind(after, end);
  if (following == kLetter && *at != '\r' && *at != '\n') return skip(after, end, kLetter);
  if (kind == kOther) return skip_newlines(skip(next, end, kOther), end);
  if (*at == ' ' && following == kOther) return skip_newlines(skip(after, end, kOther), end);
  return spaces_or_lines(at, end);
}

constexpr std::string_view kCl100kHead = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
constexpr std::string_view kCl100kTail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

size_t Scanner::next(std::string_view text, size_t at) const noexcept {
  const char* begin = text.data() + at;
  const char* end = text.data() + text.size();
  const char* stop = family == Family::kGpt2 ? next_gpt2(begin, end) : next_cl100k(begin, end, max_digits);
  return static_cast<size_t>(stop - text.data());
}

std::optional<Scanner> find_scanner(std::string_view pattern) noexcept {
  if (pattern == kGpt2Pattern) return Scanner{Scanner::Family::kGpt2, 0};
  if (pattern.size() < kCl100kHead.size() + kCl100kTail.size() || !pattern.starts_with(kCl100kHead) ||
      !pattern.ends_with(kCl100kTail)) {
    return std::nullopt;
  }
  const std::string_view digits =
      pattern.substr(kCl100kHead.size(), pattern.size() - kCl100kHead.size() - kCl100kTail.size());
  if (digits == R"(\p{N})") return Scanner{Scanner::Family::kCl100k, 1};
  if (digits == R"(\p{N}{1,2})") return Scanner{Scanner::Family::kCl100k, 2};
  if (digits == R"(\p{N}{1,3})") return Scanner{Scanner::Family::kCl100k, 3};
  if (digits == R"(\p{N}+)") return Scanner{Scanner::Family::kCl100k, std::numeric_limits<size_t>::max()};
  return std::nullopt;
}

}  // namespace coluber
