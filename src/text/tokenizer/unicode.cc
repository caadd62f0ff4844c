// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "text/tokenizer/unicode_tables.h"

namespace coluber {
namespace {

constexpr const char* kCategoryNames[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                          "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                          "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

template <typename Range, size_t kCount>
const Range* find_range(const Range (&table)[kCount], uint32_t code_point) noexcept {
  const auto* found = std::upper_bound(std::begin(table), std::end(table), code_point,
                                       [](uint32_t value, const Range& range) { return value < range.first; });
  if (found == std::begin(table)) return nullptr;
  --found;
  return code_point <= found->last ? found : nullptr;
}

bool is_new_since_14(uint32_t code_point) noexcept { return find_range(kCategoriesSince14, code_point) != nullptr; }

int combining_class(uint32_t code_point) noexcept {
  if (code_point < 0x300) return 0;
  const int found = utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point))->combining_class;
  return found == 0 || find_range(kNotMarks, code_point) != nullptr ? 0 : found;
}

void decompose(std::string_view text, utf8proc_option_t options, std::vector<utf8proc_int32_t>& out) {
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    const uint32_t code_point = next_code_point(at);
    if (code_point < 0x80 || find_range(kNotDecomposed, code_point) != nullptr || is_new_since_14(code_point)) {
      out.push_back(static_cast<utf8proc_int32_t>(code_point));
      continue;
    }
    utf8proc_int32_t parts[32];
    int last_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts,
                                                           std::size(parts), options, &last_class);
    if (count <= 0 || count > static_cast<utf8proc_ssize_t>(std::size(parts))) {
      out.push_back(static_cast<utf8proc_int32_t>(code_point));
    } else {
      out.insert(out.end(), parts, parts + count);
    }
  }
}

// Sorted by us, as the library's exchange sort is quadratic on a long run of marks. The order must be stable, so
// positions break ties.
void order_marks(std::vector<utf8proc_int32_t>& points) {
  struct Mark {
    int combining_class;
    size_t at;
    utf8proc_int32_t point;
  };
  std::vector<Mark> marks;
  for (size_t i = 0; i < points.size();) {
    marks.clear();
    size_t end = i;
    for (int found; end < points.size() && (found = combining_class(static_cast<uint32_t>(points[end]))) != 0; ++end) {
      marks.push_back({found, end, points[end]});
    }
    if (marks.size() > 1) {
      std::sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
        return a.combining_class != b.combining_class ? a.combining_class < b.combining_class : a.at < b.at;
      });
      for (size_t k = 0; k < marks.size(); ++k) points[i + k] = marks[k].point;
    }
    i = end + 1;
  }
}

}  // namespace

void append_utf8(std::string& out, uint32_t code_point) {
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
    return;
  }
  if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xC0 | code_point >> 6));
  } else {
    if (code_point < 0x10000) {
      out.push_back(static_cast<char>(0xE0 | code_point >> 12));
    } else {
      out.push_back(static_cast<char>(0xF0 | code_point >> 18));
      out.push_back(static_cast<char>(0x80 | (code_point >> 12 & 0x3F)));
    }
    out.push_back(static_cast<char>(0x80 | (code_point >> 6 & 0x3F)));
  }
  out.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
}

std::string sanitize_utf8(std::string_view text, bool final, std::string* rest) {
  std::string out;
  while (true) {
    const size_t good = valid_utf8_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    size_t broken;
    bool cut;
    check_utf8_character(text, broken, cut);
    if (cut && !final) break;
    append_utf8(out, 0xFFFD);
    text.remove_prefix(broken);
  }
  if (rest != nullptr) rest->assign(text);
  return out;
}

const char* category(uint32_t code_point) noexcept {
  const auto found = static_cast<size_t>(utf8proc_category(static_cast<utf8proc_int32_t>(code_point)));
  if (found == UTF8PROC_CATEGORY_CN || code_point == 0x1171E) {
    if (const CategoryRange* range = find_range(kCategoriesSince14, code_point)) return range->category;
  }
  return found < std::size(kCategoryNames) ? kCategoryNames[found] : "Cn";
}

bool is_letter(uint32_t code_point) noexcept { return category(code_point)[0] == 'L'; }

bool is_number(uint32_t code_point) noexcept { return category(code_point)[0] == 'N'; }

bool is_whitespace(uint32_t code_point) noexcept {
  if (code_point < 0x80) return code_point == ' ' || (code_point >= 9 && code_point <= 13);
  if (code_point < 0x1680) return code_point == 0x85 || code_point == 0xA0;
  return code_point == 0x1680 || (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 ||
         code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F || code_point == 0x3000;
}

bool is_word(uint32_t code_point) noexcept {
  const char* name = category(code_point);
  if (name[0] == 'L' || name[0] == 'M') return true;
  if (name[0] == 'N') return name[1] != 'o';
  if (name[0] == 'P') return name[1] == 'c';
  return code_point == 0x200C || code_point == 0x200D || (code_point >= 0x24B6 && code_point <= 0x24E9) ||
         (code_point >= 0x1F130 && code_point <= 0x1F149) || (code_point >= 0x1F150 && code_point <= 0x1F169) ||
         (code_point >= 0x1F170 && code_point <= 0x1F189);
}

bool is_mark(uint32_t code_point) noexcept {
  if (code_point < 0x300) return false;
  if (code_point == 0x1CF2 || code_point == 0x1CF3) return true;
  return category(code_point)[0] == 'M' && find_range(kNotMarks, code_point) == nullptr;
}

bool is_nonspacing_mark(uint32_t code_point) noexcept {
  if (code_point < 0x300) return false;
  if (code_point == 0x1734 || code_point == 0x1171E) return true;
  return std::strcmp(category(code_point), "Mn") == 0 && find_range(kNotNonspacing, code_point) == nullptr;
}

bool is_punctuation(uint32_t code_point) noexcept {
  if (code_point < 0x80) {
    return (code_point >= '!' && code_point <= '/') || (code_point >= ':' && code_point <= '@') ||
           (code_point >= '[' && code_point <= '`') || (code_point >= '{' && code_point <= '~');
  }
  if (code_point == 0x166D || code_point == 0x111C9) return true;
  return category(code_point)[0] == 'P' && find_range(kNotPunctuation, code_point) == nullptr;
}

bool is_control_or_format(uint32_t code_point) noexcept {
  const char* name = category(code_point);
  return name[0] == 'C' && name[1] != 'n';
}

void append_lower(std::string& out, uint32_t code_point) {
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point >= 'A' && code_point <= 'Z' ? code_point + 32 : code_point));
    return;
  }
  if (code_point == 0x130) {  // the one letter whose lower case is two characters whatever its surroundings
    out += "i\xCC\x87";
    return;
  }
  for (const auto& pair : kLowerSince15) {
    if (pair[0] == code_point) {
      append_utf8(out, pair[1]);
      return;
    }
  }
  append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
}

std::string normalize(std::string_view text, NormalForm form) {
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  // No character below U+0300 (0xCC 0x80) takes part in composition unless one above follows; below U+00A0 nothing
  // changes at all.
  const unsigned char inert_below = form == NormalForm::kNfc ? 0xCC : form == NormalForm::kNfkc ? 0xC2 : 0x80;
  if (std::all_of(text.begin(), text.end(), [&](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte < 0xC0 ? (inert_below != 0x80 || byte < 0x80) : byte < inert_below;
      })) {
    return std::string(text);
  }
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  decompose(text, static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0)), points);
  order_marks(points);
  if (composes) {
    const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                                static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (count >= 0) points.resize(static_cast<size_t>(count));
  }
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t point : points) append_utf8(out, static_cast<uint32_t>(point));
  return out;
}

void grapheme_ends(std::string_view text, std::vector<size_t>& ends) {
  ends.clear();
  const char* at = text.data();
  const char* end = at + text.size();
  if (at == end) return;
  utf8proc_int32_t state = 0;
  auto previous = static_cast<utf8proc_int32_t>(next_code_point(at));
  while (at < end) {
    const char* start = at;
    const auto current = static_cast<utf8proc_int32_t>(next_code_point(at));
    if (utf8proc_grapheme_break_stateful(previous, current, &state))
      ends.push_back(static_cast<size_t>(start - text.data()));
    previous = current;
  }
  ends.push_back(text.size());
}

}  // namespace coluber
