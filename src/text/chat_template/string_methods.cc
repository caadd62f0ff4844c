// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "text/chat_template/arguments.h"
#include "text/chat_template/fault.h"
#include "text/chat_template/methods.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/python.h"
#include "text/chat_template/python_unicode.h"
#include "text/chat_template/string_format.h"

namespace coluber::jinja {

Value strip(Heap& heap, const Text& text, const Value* chars, Side side) {
  const std::string_view whole = text.bytes;
  heap.step(static_cast<int64_t>(whole.size()) / 64);
  if (chars == nullptr || chars->is_none()) {
    const std::string_view left = side == Side::kRight ? whole : strip_left(whole);
    const size_t begin = whole.size() - left.size();
    return heap.part(text, begin, begin + (side == Side::kLeft ? left : strip_right(left)).size());
  }
  if (!chars->is_string()) raise_type("strip arg must be None or str");
  const std::string& set = chars->str();
  const auto in_set = [&set, &heap](std::string_view c) {
    heap.step(static_cast<int64_t>(set.size()) / 256);
    for (size_t at = set.find(c); at != set.npos; at = set.find(c, at + 1)) {
      if ((static_cast<unsigned char>(set[at]) & 0xC0) != 0x80) return true;
    }
    return false;
  };
  size_t begin = 0, end = whole.size();
  while (side != Side::kRight && begin < end && in_set(whole.substr(begin, char_size(whole, begin))))
    begin += char_size(whole, begin);
  while (side != Side::kLeft && begin < end) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(whole[last]) & 0xC0) == 0x80) --last;
    if (!in_set(whole.substr(last, end - last))) break;
    end = last;
  }
  return heap.part(text, begin, end);
}

std::vector<std::pair<size_t, size_t>> line_spans(std::string_view text, bool keep_ends) {
  std::vector<std::pair<size_t, size_t>> spans;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = decode_char(text, &at);
    const bool line_end = (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!line_end) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    spans.emplace_back(begin, keep_ends ? at : end);
    begin = at;
  }
  if (begin < text.size()) spans.emplace_back(begin, text.size());
  return spans;
}

Value replace(Heap& heap, const Text& text, std::string_view from, const Text& to, int64_t count) {
  Text out;
  const std::string& whole = text.bytes;
  heap.step(static_cast<int64_t>(whole.size()) / 64);
  size_t at = 0;
  const auto put = [&] {
    heap.check_text(static_cast<int64_t>(out.bytes.size() + to.bytes.size()));
    heap.step(static_cast<int64_t>(to.bytes.size()) / 256);
    out.append(to);
  };
  if (from.empty()) {
    for (; count != 0; --count) {
      put();
      if (at >= whole.size()) break;
      const size_t size = char_size(whole, at);
      out.append(text, at, at + size);
      at += size;
    }
  } else {
    for (size_t hit = find_text(whole, from); count != 0 && hit != whole.npos;
         hit = find_text(whole, from, at), --count) {
      if (hit > at) out.append(text, at, hit);
      put();
      at = hit + from.size();
    }
  }
  if (at < whole.size()) out.append(text, at, whole.size());
  return heap.text(std::move(out));
}

Value center(Heap& heap, const Text& text, int64_t width, std::string_view fill, int where) {
  const int64_t size = char_count(text.bytes);
  if (char_count(fill) != 1) raise_type("The fill character must be exactly one character long");
  if (width <= size) return heap.part(text, 0, text.bytes.size());
  heap.check_text(width);
  const int64_t pad = width - size;
  const int64_t left = where < 0 ? 0 : where > 0 ? pad : pad / 2 + (pad & width & 1);
  Text out;
  for (int64_t i = 0; i < left; ++i) out.append(fill, false);
  out.append(text);
  for (int64_t i = left; i < pad; ++i) out.append(fill, false);
  return heap.text(std::move(out));
}

namespace {

using Spans = std::vector<std::pair<size_t, size_t>>;

// The words between runs of white space, none at the ends; what `limit` leaves is one word.
Spans split_words(Heap& heap, std::string_view whole, int64_t limit) {
  Spans spans;
  for (std::string_view rest = strip_left(whole); !rest.empty(); rest = strip_left(rest)) {
    heap.step();
    const size_t base = whole.size() - rest.size();
    size_t end = rest.size();
    for (size_t at = 0; limit != 0 && at < rest.size();) {
      const size_t here = at;
      if (!is_space(decode_char(rest, &at))) continue;
      end = here;
      break;
    }
    if (limit == 0) {
      spans.emplace_back(base, whole.size());
      break;
    }
    --limit;
    spans.emplace_back(base, base + end);
    rest.remove_prefix(end);
  }
  return spans;
}

// The same from the right; the spans come last word first.
Spans split_words_from_right(Heap& heap, std::string_view whole, int64_t limit) {
  Spans spans;
  for (std::string_view rest = strip_right(whole); !rest.empty(); rest = strip_right(rest)) {
    heap.step();
    size_t begin = rest.size();
    while (limit != 0 && begin > 0) {
      size_t last = begin - 1;
      while (last > 0 && (static_cast<unsigned char>(rest[last]) & 0xC0) == 0x80) --last;
      size_t cursor = last;
      if (is_space(decode_char(rest, &cursor))) break;
      begin = last;
    }
    if (limit == 0) {
      spans.emplace_back(0, rest.size());
      break;
    }
    --limit;
    spans.emplace_back(begin, rest.size());
    rest = rest.substr(0, begin);
  }
  return spans;
}

Spans split_at(Heap& heap, std::string_view whole, std::string_view separator, int64_t limit, bool from_right) {
  if (separator.empty()) raise_type("empty separator");
  Spans spans;
  size_t begin = 0, end = whole.size();
  for (; limit != 0; --limit) {
    heap.step();
    const size_t hit =
        from_right ? find_last_text(heap, whole.substr(0, end), separator) : find_text(whole, separator, begin);
    if (hit == whole.npos) break;
    if (from_right) {
      spans.emplace_back(hit + separator.size(), end);
      end = hit;
    } else {
      spans.emplace_back(begin, hit);
      begin = hit + separator.size();
    }
  }
  spans.emplace_back(begin, end);
  return spans;
}

Value split(Heap& heap, const Text& text, const Arguments& args, bool from_right) {
  const int64_t limit = args.integer(1, -1);
  heap.step(static_cast<int64_t>(text.bytes.size()) / 64);
  Spans spans;
  if (args.given_not_none(0)) {
    spans = split_at(heap, text.bytes, args.text(0).bytes, limit, from_right);
  } else {
    spans = from_right ? split_words_from_right(heap, text.bytes, limit) : split_words(heap, text.bytes, limit);
  }
  if (from_right) std::reverse(spans.begin(), spans.end());
  Values parts;
  parts.reserve(spans.size());
  for (const auto& [begin, end] : spans) parts.push_back(heap.part(text, begin, end));
  return heap.list(std::move(parts));
}

Value partition(Heap& heap, const Text& text, const Args& args, bool from_right) {
  const Arguments bound(from_right ? "rpartition" : "partition", args, {"sep"}, 1);
  const std::string& separator = bound.text(0).bytes;
  if (separator.empty()) raise_type("empty separator");
  const size_t hit = from_right ? find_last_text(heap, text.bytes, separator) : find_text(text.bytes, separator);
  if (hit == std::string::npos) {
    Value whole = heap.part(text, 0, text.bytes.size()), none = heap.string({});
    return from_right ? heap.tuple({none, none, whole}) : heap.tuple({whole, none, none});
  }
  const size_t behind = hit + separator.size();
  return heap.tuple(
      {heap.part(text, 0, hit), heap.part(text, hit, behind), heap.part(text, behind, text.bytes.size())});
}

// The part of the text between characters `start` and `end`, as find and count take them.
struct Window {
  size_t begin = 0, end = 0;
  int64_t first_char = 0;
  bool empty_range = false;  // start lies behind the end: not even "" is found
};

Window window(const std::string& text, const Arguments& args, size_t first) {
  Window out;
  const int64_t size = char_count(text);
  const auto clamp = [size](int64_t at) { return at < 0 ? std::max<int64_t>(at < -size ? 0 : at + size, 0) : at; };
  const int64_t start = args.given_not_none(first) ? clamp(args.integer(first, 0)) : 0;
  const int64_t stop = std::min(args.given_not_none(first + 1) ? clamp(args.integer(first + 1, 0)) : size, size);
  out.empty_range = start > stop;
  out.first_char = start;
  out.begin = char_offset(text, start);
  out.end = out.empty_range ? out.begin : char_offset(text, stop);
  return out;
}

Value find(Heap& heap, const std::string& text, std::string_view name, const Args& args) {
  const Arguments bound(name, args, {"sub", "start", "end"}, 1);
  const std::string& needle = bound.text(0).bytes;
  const Window range = window(text, bound, 1);
  const std::string_view part = std::string_view(text).substr(range.begin, range.end - range.begin);
  const bool last = name[0] == 'r';
  const size_t hit = range.empty_range ? part.npos
                     : last            ? find_last_text(heap, part, needle)
                                       : find_text(part, needle);
  if (hit == part.npos) {
    if (name == "index" || name == "rindex") raise_type("substring not found");
    return Value(int64_t{-1});
  }
  return Value(range.first_char + char_count(part.substr(0, hit)));
}

Value count(const std::string& text, const Args& args) {
  const Arguments bound("count", args, {"sub", "start", "end"}, 1);
  const std::string& needle = bound.text(0).bytes;
  const Window range = window(text, bound, 1);
  if (range.empty_range) return Value(int64_t{0});
  const std::string_view part = std::string_view(text).substr(range.begin, range.end - range.begin);
  if (needle.empty()) return Value(char_count(part) + 1);
  int64_t found = 0;
  for (size_t at = find_text(part, needle); at != part.npos; at = find_text(part, needle, at + needle.size())) ++found;
  return Value(found);
}

Value affix(const std::string& text, std::string_view name, const Args& args) {
  const Arguments bound(name, args, {"prefix", "start", "end"}, 1);
  const Window range = window(text, bound, 1);
  const std::string_view part = std::string_view(text).substr(range.begin, range.end - range.begin);
  const bool front = name == "startswith";
  const auto matches = [&](const Value& value) {
    if (!value.is_string()) raise_type("{} first arg must be str or a tuple of str, not {}", name, type_name(value));
    return !range.empty_range && (front ? part.starts_with(value.str()) : part.ends_with(value.str()));
  };
  if (bound.at(0).is_undefined()) raise(FaultKind::kUndefined, "{}", bound.at(0).undefined_message());
  if (!bound.at(0).is_tuple()) return Value(matches(bound.at(0)));
  for (const Value& item : bound.at(0).items()) {
    if (matches(item)) return Value(true);
  }
  return Value(false);
}

Value join(Heap& heap, const Text& separator, const Args& args) {
  const Arguments bound("join", args, {"iterable"}, 1);
  if (!is_iterable(bound.at(0))) raise_type("can only join an iterable");
  const Values items = iterate(bound.at(0), heap);
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) raise_type("sequence item {}: expected str instance, {} found", i, type_name(items[i]));
    if (i > 0) out.append(separator);
    append_str(&out, items[i], heap);
  }
  return heap.text(std::move(out));
}

template <typename F>
bool all_chars(std::string_view text, F&& test) {
  for (size_t at = 0; at < text.size();) {
    if (!test(decode_char(text, &at))) return false;
  }
  return !text.empty();
}

bool classify(std::string_view text, std::string_view name) {
  if (name == "isalpha") return all_chars(text, is_alpha);
  if (name == "isdigit") return all_chars(text, is_digit);
  if (name == "isdecimal") return all_chars(text, is_decimal);
  if (name == "isnumeric") return all_chars(text, is_numeric);
  if (name == "isalnum") return all_chars(text, is_alnum);
  if (name == "isspace") return all_chars(text, is_space);
  if (name == "isascii") return text.empty() || all_chars(text, [](char32_t c) { return c < 0x80; });
  if (name == "isprintable") return text.empty() || all_chars(text, is_printable);
  if (name == "isidentifier") {
    size_t first = 0;
    if (text.empty() || is_numeric(decode_char(text, &first))) return false;
    return all_chars(text, [](char32_t c) { return c == '_' || is_alnum(c); });
  }
  bool cased = false, in_word = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = decode_char(text, &at);
    const bool up = is_upper(c), low = is_lower(c), titled = is_title(c);
    if (name == "islower" && (up || titled)) return false;
    if (name == "isupper" && (low || titled)) return false;
    if (name == "istitle" && ((in_word && (up || titled)) || (!in_word && low))) return false;
    in_word = up || low || titled;
    cased = cased || (name == "islower" ? low : name == "isupper" ? up : in_word);
  }
  return cased;
}

Value zfill(Heap& heap, const Text& text, const Args& args) {
  const int64_t width = Arguments("zfill", args, {"width"}, 1).integer(0, 0);
  const int64_t pad = width - char_count(text.bytes);
  if (pad <= 0) return heap.part(text, 0, text.bytes.size());
  heap.check_text(width);
  const size_t sign = !text.bytes.empty() && (text.bytes[0] == '+' || text.bytes[0] == '-') ? 1 : 0;
  Text out;
  if (sign > 0) out.append(text, 0, 1);
  out.append(std::string(static_cast<size_t>(pad), '0'), false);
  if (sign < text.bytes.size()) out.append(text, sign, text.bytes.size());
  return heap.text(std::move(out));
}

Value expand_tabs(Heap& heap, const Text& text, const Args& args) {
  const int64_t size = Arguments("expandtabs", args, {"tabsize"}).integer(0, 8);
  std::string out;
  int64_t column = 0;
  for (const char c : text.bytes) {
    if (c == '\t') {
      const int64_t pad = size > 0 ? size - column % size : 0;
      heap.check_text(static_cast<int64_t>(out.size()) + pad);
      out.append(static_cast<size_t>(pad), ' ');
      column += pad;
    } else {
      out += c;
      column = c == '\n' || c == '\r' ? 0 : column + ((static_cast<unsigned char>(c) & 0xC0) != 0x80);
    }
  }
  return heap.string(std::move(out), text.any_input());
}

Value remove_affix(Heap& heap, const Text& text, std::string_view name, const Args& args) {
  const std::string& affix = Arguments(name, args, {"affix"}, 1).text(0).bytes;
  size_t begin = 0, end = text.bytes.size();
  if (name == "removeprefix" && text.bytes.starts_with(affix)) begin = affix.size();
  if (name == "removesuffix" && text.bytes.ends_with(affix)) end -= affix.size();
  return heap.part(text, begin, end);
}

constexpr std::array<std::string_view, 47> kStringMethods = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill"};

Value changed_case(Heap& heap, const Text& text, std::string_view name, const Args& args) {
  [[maybe_unused]] const Arguments none(name, args, {});
  heap.step(static_cast<int64_t>(text.bytes.size()) / 32);
  const std::string& from = text.bytes;
  return heap.string(name == "upper"        ? upper(from)
                     : name == "title"      ? title(from)
                     : name == "capitalize" ? capitalize(from)
                     : name == "swapcase"   ? swap_case(from)
                                            : lower(from),
                     text.any_input());
}

}  // namespace

bool has_string_method(std::string_view name) noexcept {
  return std::binary_search(kStringMethods.begin(), kStringMethods.end(), name);
}

namespace {

Value call_format(Interpreter& in, const Text& text, std::string_view name, const Args& args) {
  Heap& heap = in.heap();
  if (name == "format") {
    bool input = text.any_input();
    for (const Value& value : args.positional) input = input || any_input(value);
    for (const auto& [word, value] : args.keyword) input = input || any_input(value);
    return heap.string(brace_format(in, text.bytes, args), input);
  }
  const Arguments bound(name, args, {"mapping"}, 1);
  if (!bound.at(0).is_dict()) raise_type("format_map() argument must be a mapping, not '{}'", type_name(bound.at(0)));
  Args words;
  for (const auto& [key, value] : bound.at(0).dict().entries) {
    if (key.is_string()) words.keyword.emplace_back(key.str(), value);
  }
  return heap.string(brace_format(in, text.bytes, words), true);
}

}  // namespace

Value call_string_method(Interpreter& in, const Value& self, std::string_view name, const Args& args) {
  Heap& heap = in.heap();
  const Text& text = self.text();
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Arguments bound(name, args, {"chars"});
    return strip(heap, text, bound.given(0) ? &bound.at(0) : nullptr,
                 name[0] == 's'   ? Side::kBoth
                 : name[0] == 'l' ? Side::kLeft
                                  : Side::kRight);
  }
  if (name == "split" || name == "rsplit")
    return split(heap, text, Arguments(name, args, {"sep", "maxsplit"}), name[0] == 'r');
  if (name == "startswith" || name == "endswith") return affix(text.bytes, name, args);
  if (name == "replace") {
    const Arguments bound(name, args, {"old", "new", "count"}, 2);
    return replace(heap, text, bound.text(0).bytes, bound.text(1), bound.integer(2, -1));
  }
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize" || name == "swapcase" ||
      name == "casefold") {
    return changed_case(heap, text, name, args);
  }
  if (name == "join") return join(heap, text, args);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex")
    return find(heap, text.bytes, name, args);
  if (name == "count") return count(text.bytes, args);
  if (name == "splitlines") {
    Values lines;
    for (const auto& [begin, end] : line_spans(text.bytes, Arguments(name, args, {"keepends"}).flag(0, false)))
      lines.push_back(heap.part(text, begin, end));
    return heap.list(std::move(lines));
  }
  if (name == "partition" || name == "rpartition") return partition(heap, text, args, name[0] == 'r');
  if (name == "removeprefix" || name == "removesuffix") return remove_affix(heap, text, name, args);
  if (name == "center" || name == "ljust" || name == "rjust") {
    const Arguments bound(name, args, {"width", "fillchar"}, 1);
    return center(heap, text, bound.integer(0, 0), bound.given(1) ? std::string_view(bound.text(1).bytes) : " ",
                  name[0] == 'c'   ? 0
                  : name[0] == 'l' ? -1
                                   : 1);
  }
  if (name == "zfill") return zfill(heap, text, args);
  if (name == "expandtabs") return expand_tabs(heap, text, args);
  if (name == "format" || name == "format_map") return call_format(in, text, name, args);
  if (name.starts_with("is")) {
    [[maybe_unused]] const Arguments none(name, args, {});
    return Value(classify(text.bytes, name));
  }
  raise_type("the method '{}' of strings is not supported in chat templates", name);
}

}  // namespace coluber::jinja
