// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/python_unicode.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "text/chat_template/python.h"

namespace coluber::jinja {

namespace {

struct Range {
  uint32_t first, last;
};
struct Mapping {
  uint32_t first, last, step;
  int32_t delta;
};
struct Expansion {
  uint32_t from;
  uint32_t to[3] = {};
  constexpr Expansion(uint32_t c, uint32_t a, uint32_t b, uint32_t d) : from(c), to{a, b, d} {}
};

#include "text/chat_template/python_unicode_tables.inl"

template <size_t N>
bool in(const Range (&ranges)[N], char32_t c) noexcept {
  const Range* found =
      std::lower_bound(std::begin(ranges), std::end(ranges), c, [](const Range& r, char32_t x) { return r.last < x; });
  return found != std::end(ranges) && found->first <= c;
}

template <size_t N>
char32_t mapped(const Mapping (&mappings)[N], char32_t c) noexcept {
  // Runs of step 2 interleave, so the one before may hold it too.
  const Mapping* found = std::lower_bound(std::begin(mappings), std::end(mappings), c,
                                          [](const Mapping& m, char32_t x) { return m.last < x; });
  for (int tries = 0; tries < 3 && found != std::end(mappings) && found->first <= c; ++tries, ++found) {
    if ((c - found->first) % found->step == 0) return static_cast<char32_t>(static_cast<int64_t>(c) + found->delta);
  }
  return c;
}

template <size_t N>
const Expansion* expansion(const Expansion (&expansions)[N], char32_t c) noexcept {
  const Expansion* found = std::lower_bound(std::begin(expansions), std::end(expansions), c,
                                            [](const Expansion& e, char32_t x) { return e.from < x; });
  return found != std::end(expansions) && found->from == c ? found : nullptr;
}

void append_expansion(std::string* out, const Expansion& found) {
  for (const uint32_t c : found.to) {
    if (c != 0) append_char(out, c);
  }
}

void append_upper(std::string* out, char32_t c) {
  if (const Expansion* found = c < 0x80 ? nullptr : expansion(kUpperExpansion, c)) return append_expansion(out, *found);
  append_char(out, c < 0x80 ? (c >= 'a' && c <= 'z' ? c - 32 : c) : mapped(kUpperMap, c));
}

bool has_title_mapping(char32_t c) noexcept {
  return std::any_of(std::begin(kTitleMap), std::end(kTitleMap),
                     [c](const Mapping& m) { return m.first <= c && c <= m.last && (c - m.first) % m.step == 0; });
}

void append_title(std::string* out, char32_t c) {
  if (c < 0x80) return append_upper(out, c);
  if (const Expansion* found = expansion(kTitleExpansion, c)) return append_expansion(out, *found);
  append_char(out, has_title_mapping(c) ? mapped(kTitleMap, c) : mapped(kUpperMap, c));
}

bool is_cased(char32_t c) noexcept { return is_lower(c) || is_upper(c) || is_title(c); }

// `at` is where the character stands in `text`: a sigma at the end of a word has a form of its own.
void append_lower(std::string* out, std::string_view text, size_t at, char32_t c) {
  if (c < 0x80) return append_char(out, c >= 'A' && c <= 'Z' ? c + 32 : c);
  if (c == 0x130) {
    append_char(out, 'i');
    return append_char(out, 0x307);
  }
  if (c == 0x3A3) {
    size_t next = at, before = at;
    decode_char(text, &next);
    while (before > 0 && (static_cast<unsigned char>(text[--before]) & 0xC0) == 0x80) {
    }
    size_t cursor = before;
    const bool inside = at > 0 && is_cased(decode_char(text, &cursor));
    const bool final = inside && (next >= text.size() || !is_cased(decode_char(text, &next)));
    return append_char(out, final ? 0x3C2 : 0x3C3);
  }
  append_char(out, mapped(kLowerMap, c));
}

template <typename F>
std::string each(std::string_view text, F&& append) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = decode_char(text, &at);
    append(&out, begin, c);
  }
  return out;
}

}  // namespace

bool is_space(char32_t c) noexcept {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_alpha(char32_t c) noexcept { return in(kAlpha, c); }
bool is_decimal(char32_t c) noexcept { return in(kDecimal, c); }
bool is_digit(char32_t c) noexcept { return in(kDecimal, c) || in(kDigit, c); }
bool is_numeric(char32_t c) noexcept { return is_digit(c) || in(kNumeric, c); }
bool is_alnum(char32_t c) noexcept { return is_alpha(c) || is_numeric(c); }
bool is_printable(char32_t c) noexcept { return !in(kUnprintable, c); }

bool is_lower(char32_t c) noexcept {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  return in(kLowerOnly, c) || (mapped(kUpperMap, c) != c && !in(kNotLower, c));
}

bool is_upper(char32_t c) noexcept {
  if (c < 0x80) return c >= 'A' && c <= 'Z';
  return in(kUpperOnly, c) || (mapped(kLowerMap, c) != c && !in(kNotUpper, c));
}

bool is_title(char32_t c) noexcept { return in(kNotUpper, c); }

std::string upper(std::string_view text) {
  return each(text, [](std::string* out, size_t, char32_t c) { append_upper(out, c); });
}

std::string lower(std::string_view text) {
  return each(text, [text](std::string* out, size_t at, char32_t c) { append_lower(out, text, at, c); });
}

std::string title(std::string_view text) {
  bool in_word = false;
  return each(text, [&](std::string* out, size_t at, char32_t c) {
    in_word ? append_lower(out, text, at, c) : append_title(out, c);
    in_word = is_cased(c);
  });
}

std::string capitalize(std::string_view text) {
  return each(text, [text](std::string* out, size_t at, char32_t c) {
    at == 0 ? append_title(out, c) : append_lower(out, text, at, c);
  });
}

std::string swap_case(std::string_view text) {
  return each(text, [text](std::string* out, size_t at, char32_t c) {
    is_upper(c) ? append_lower(out, text, at, c) : append_upper(out, c);
  });
}

std::string_view strip_left(std::string_view text) noexcept {
  while (!text.empty()) {
    size_t next = 0;
    if (!is_space(decode_char(text, &next))) break;
    text.remove_prefix(next);
  }
  return text;
}

std::string_view strip_right(std::string_view text) noexcept {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    size_t next = begin;
    if (!is_space(decode_char(text, &next))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

}  // namespace coluber::jinja
