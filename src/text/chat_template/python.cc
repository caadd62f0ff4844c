// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/python.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>

#include "text/chat_template/fault.h"
#include "text/chat_template/python_unicode.h"

namespace coluber::jinja {

std::string_view type_name(const Value& value) noexcept {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.text().markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
      return value.view().type;
    case Kind::kIterator:
      return value.iterator().type;
    case Kind::kObject:
      return value.object()->type_name();
  }
  return "object";
}

std::string object_repr(const Value& value) {
  if (value.is_none()) return "None";
  return fmt::format("{} object", type_name(value));
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean();
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.real() != 0;
    case Kind::kString:
      return !value.str().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    case Kind::kView:
      return !value.view().items.empty();
    case Kind::kIterator:
    case Kind::kObject:
      return true;
  }
  return false;
}

namespace {

bool equal_items(const Values& a, const Values& b, int depth) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i], b[i], depth + 1)) return false;
  }
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b, int depth) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.find(key);
    if (other == nullptr || !equal(value, *other, depth + 1)) return false;
  }
  return true;
}

bool equal_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  if (a.is_float() && b.is_float()) return a.real() == b.real();
  const double real = a.is_float() ? a.real() : b.real();
  const int64_t integer = a.is_float() ? b.integer() : a.integer();
  // Exact, as Python compares: a double of 2^53 + 1 does not exist.
  return std::floor(real) == real && real >= -0x1p63 && real < 0x1p63 && static_cast<int64_t>(real) == integer;
}

}  // namespace

bool equal(const Value& a, const Value& b, int depth) {
  if (depth > kMaxValueDepth)
    raise(FaultKind::kLimit, "values nested deeper than {} cannot be compared", kMaxValueDepth);
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      if (a.str().size() == b.str().size()) a.text().charge.step(a.str().size() / 256);
      return a.str() == b.str();
    case Kind::kList:
    case Kind::kTuple:
      a.list().charge.step(1 + a.items().size() / 4);
      return a.identity() == b.identity() || equal_items(a.items(), b.items(), depth);
    case Kind::kDict:
      a.dict().charge.step(1 + a.dict().entries.size() / 4);
      return a.identity() == b.identity() || equal_dicts(a.dict(), b.dict(), depth);
    case Kind::kView:
      if (a.view().type != b.view().type || a.view().type == "dict_values") return a.identity() == b.identity();
      if (a.view().is_range()) return equal_items(a.view().items, b.view().items, depth);
      if (a.view().items.size() != b.view().items.size()) return false;
      for (const Value& item : a.view().items) {
        if (!contains(b, item)) return false;
      }
      return true;
    default:
      return a.identity() == b.identity();
  }
}

namespace {

void require_defined(const Value& a, const Value& b) {
  if (a.is_undefined()) raise(FaultKind::kUndefined, "{}", a.undefined_message());
  if (b.is_undefined()) raise(FaultKind::kUndefined, "{}", b.undefined_message());
}

[[noreturn]] void not_ordered(const Value& a, const Value& b, std::string_view op) {
  // `>` comes here with its operands swapped.
  const bool swapped = op[0] == '>';
  raise_type("'{}' not supported between instances of '{}' and '{}'", op, type_name(swapped ? b : a),
             type_name(swapped ? a : b));
}

}  // namespace

bool less(const Value& a, const Value& b, std::string_view op) {
  require_defined(a, b);
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.real() < b.real();
  if (a.is_string() && b.is_string()) return a.str() < b.str();  // UTF-8 sorts as its code points do
  if (a.kind() == b.kind() && (a.is_list() || a.is_tuple())) {
    const Values &x = a.items(), &y = b.items();
    a.list().charge.step(1);
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equal(x[i], y[i])) return less(x[i], y[i], op);
    }
    return x.size() < y.size();
  }
  not_ordered(a, b, op);
}

bool less_equal(const Value& a, const Value& b, std::string_view op) {
  require_defined(a, b);
  if (a.is_number() && b.is_number() && (a.is_float() || b.is_float())) return a.real() <= b.real();
  return !less(b, a, op == "<=" ? ">=" : "<=");
}

size_t hash_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      return std::hash<int64_t>{}(value.integer());
    case Kind::kFloat: {
      const double real = value.real();
      if (std::floor(real) == real && real >= -0x1p63 && real < 0x1p63)
        return std::hash<int64_t>{}(static_cast<int64_t>(real));
      return std::hash<double>{}(real);
    }
    case Kind::kString:
      value.text().charge.step(value.str().size() / 256);
      return std::hash<std::string_view>{}(value.str());
    case Kind::kTuple: {
      value.list().charge.step(1 + value.items().size());
      size_t seed = 0x9e3779b9;
      for (const Value& item : value.items()) seed = seed * 31 + hash_of(item);
      return seed;
    }
    case Kind::kList:
    case Kind::kDict:
      raise_type("unhashable type: '{}'", type_name(value));
    case Kind::kUndefined:
    case Kind::kNone:
      return static_cast<size_t>(value.kind());
    default:
      return std::hash<const void*>{}(value.identity());
  }
}

bool contains(const Value& haystack, const Value& needle) {
  switch (haystack.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (needle.is_undefined()) raise(FaultKind::kUndefined, "{}", needle.undefined_message());
      if (!needle.is_string()) raise_type("'in <string>' requires string as left operand, not {}", type_name(needle));
      haystack.text().charge.step(haystack.str().size() / 256);
      return find_text(haystack.str(), needle.str()) != std::string::npos;
    case Kind::kDict:
      return haystack.dict().find(needle) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
      haystack.list().charge.step(haystack.items().size() / 4);
      for (const Value& item : haystack.items()) {
        if (equal(item, needle)) return true;
      }
      return false;
    case Kind::kView:
      haystack.view().charge.step(haystack.view().items.size() / 4);
      for (const Value& item : haystack.view().items) {
        if (equal(item, needle)) return true;
      }
      return false;
    case Kind::kIterator: {
      Iterator& it = haystack.iterator();
      while (it.next < it.items.size()) {
        if (equal(it.items[it.next++], needle)) return true;
      }
      return false;
    }
    default:
      raise_type("argument of type '{}' is not iterable", type_name(haystack));
  }
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  // Shortest digits that read back the same, as Python's repr; only the layout differs.
  const auto done = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(done.ptr - buffer));
  std::string out;
  if (text[0] == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 1) digits += text.substr(2, e - 2);
  int exponent = 0;
  std::string_view power = text.substr(e + 1);
  if (power[0] == '+') power.remove_prefix(1);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string string_repr(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = decode_char(text, &at);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x7f || is_printable(c)) {
      out += text.substr(begin, at - begin);
    } else if (c <= 0xff) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c <= 0xffff) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out + quote;
}

namespace {

void append_items(std::string* out, const Values& items, Heap& heap, int depth) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) *out += ", ";
    append_repr(out, items[i], heap, depth + 1);
  }
}

void append_dict(std::string* out, const Dict& dict, Heap& heap, int depth) {
  *out += '{';
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) *out += ", ";
    append_repr(out, dict.entries[i].first, heap, depth + 1);
    *out += ": ";
    append_repr(out, dict.entries[i].second, heap, depth + 1);
  }
  *out += '}';
}

}  // namespace

void append_repr(std::string* out, const Value& value, Heap& heap, int depth) {
  if (depth > kMaxValueDepth)
    raise(FaultKind::kLimit, "values nested deeper than {} cannot be printed", kMaxValueDepth);
  heap.step();
  heap.check_text(static_cast<int64_t>(out->size()));
  switch (value.kind()) {
    case Kind::kUndefined:
      *out += "Undefined";
      break;
    case Kind::kNone:
      *out += "None";
      break;
    case Kind::kBool:
      *out += value.boolean() ? "True" : "False";
      break;
    case Kind::kInt:
      *out += std::to_string(value.integer());
      break;
    case Kind::kFloat:
      *out += float_repr(value.real());
      break;
    case Kind::kString:
      heap.step(static_cast<int64_t>(value.str().size()) / 64);
      *out += value.text().markup ? "Markup(" + string_repr(value.str()) + ")" : string_repr(value.str());
      break;
    case Kind::kList:
      *out += '[';
      append_items(out, value.items(), heap, depth);
      *out += ']';
      break;
    case Kind::kTuple:
      *out += '(';
      append_items(out, value.items(), heap, depth);
      *out += value.items().size() == 1 ? ",)" : ")";
      break;
    case Kind::kDict:
      append_dict(out, value.dict(), heap, depth);
      break;
    case Kind::kView:
      if (value.view().is_range()) {
        *out += value.view().repr;
        break;
      }
      *out += fmt::format("{}([", value.view().type);
      append_items(out, value.view().items, heap, depth);
      *out += "])";
      break;
    case Kind::kIterator:
      *out += fmt::format("<{} object>", type_name(value));
      break;
    case Kind::kObject:
      value.object()->append_repr(out, heap, depth);
      break;
  }
}

void Object::append_repr(std::string* out, Heap&, int) const { *out += fmt::format("<{} object>", type_name()); }

void append_str(Text* out, const Value& value, Heap& heap) {
  if (value.is_string()) {
    heap.check_text(static_cast<int64_t>(out->bytes.size() + value.str().size()));
    heap.step(static_cast<int64_t>(value.str().size()) / 256);
    out->append(value.text());
    return;
  }
  if (value.is_undefined()) return;
  std::string made;
  append_repr(&made, value, heap);
  out->append(made, any_input(value));
}

std::string to_str(const Value& value, Heap& heap) {
  if (value.is_string()) return value.str();
  if (value.is_undefined()) return {};
  return to_repr(value, heap);
}

std::string to_repr(const Value& value, Heap& heap) {
  std::string out;
  append_repr(&out, value, heap);
  return out;
}

bool any_input(const Value& value) {
  const auto any = [](const Values& items) {
    for (const Value& item : items) {
      if (any_input(item)) return true;
    }
    return false;
  };
  switch (value.kind()) {
    case Kind::kString:
      return value.text().any_input();
    case Kind::kList:
    case Kind::kTuple:
      value.list().charge.step(1);
      return any(value.items());
    case Kind::kDict:
      for (const auto& [key, item] : value.dict().entries) {
        if (any_input(key) || any_input(item)) return true;
      }
      return false;
    case Kind::kView:
      return any(value.view().items);
    default:
      return false;
  }
}

Values iterate(const Value& value, Heap& heap) {
  Values items;
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kString: {
      const std::string& text = value.str();
      heap.hold(static_cast<int64_t>(text.size() * 128));
      heap.release(static_cast<int64_t>(text.size() * 128));  // the characters charge for themselves
      for (size_t at = 0; at < text.size();) {
        const size_t size = char_size(text, at);
        items.push_back(heap.part(value.text(), at, at + size));
        at += size;
      }
      break;
    }
    case Kind::kList:
    case Kind::kTuple:
      items = value.items();
      break;
    case Kind::kDict:
      for (const auto& [key, item] : value.dict().entries) items.push_back(key);
      break;
    case Kind::kView:
      items = value.view().items;
      break;
    case Kind::kIterator: {
      Iterator& it = value.iterator();
      items.assign(it.items.begin() + static_cast<std::ptrdiff_t>(it.next), it.items.end());
      it.next = it.items.size();
      break;
    }
    default:
      raise_type("'{}' object is not iterable", type_name(value));
  }
  heap.step(static_cast<int64_t>(items.size()) / 8 + 1);
  return items;
}

bool is_iterable(const Value& value) noexcept {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kView:
    case Kind::kIterator:
      return true;
    default:
      return false;
  }
}

int64_t length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return char_count(value.str());
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    case Kind::kView:
      return static_cast<int64_t>(value.view().items.size());
    default:
      raise_type("object of type '{}' has no len()", type_name(value));
  }
}

namespace {
[[noreturn]] void overflow(int64_t a, char op, int64_t b) {
  raise(FaultKind::kLimit, "{} {} {} does not fit 64 bits, the largest integers of a template", a, op, b);
}
}  // namespace

int64_t checked_add(int64_t a, int64_t b) {
  int64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) overflow(a, '+', b);
  return out;
}

int64_t checked_sub(int64_t a, int64_t b) {
  int64_t out = 0;
  if (__builtin_sub_overflow(a, b, &out)) overflow(a, '-', b);
  return out;
}

int64_t checked_mul(int64_t a, int64_t b) {
  int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) overflow(a, '*', b);
  return out;
}

size_t find_text(std::string_view text, std::string_view needle, size_t from) noexcept {
  if (from > text.size()) return std::string_view::npos;
  const void* hit = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (hit == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

size_t find_last_text(Heap& heap, std::string_view text, std::string_view needle) {
  if (needle.size() > text.size()) return std::string_view::npos;
  heap.step(1 + static_cast<int64_t>((text.size() - needle.size()) * (needle.size() / 64) / 256));
  return text.rfind(needle);
}

int64_t char_count(std::string_view text) noexcept {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

size_t char_size(std::string_view text, size_t at) noexcept {
  size_t size = 1;
  while (at + size < text.size() && (static_cast<unsigned char>(text[at + size]) & 0xC0) == 0x80) ++size;
  return size;
}

size_t char_offset(std::string_view text, int64_t index) noexcept {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += char_size(text, at);
  return at;
}

char32_t decode_char(std::string_view text, size_t* at) noexcept {
  const unsigned char lead = static_cast<unsigned char>(text[*at]);
  const size_t size = char_size(text, *at);
  char32_t c = size == 1 ? lead : size == 2 ? lead & 0x1Fu : size == 3 ? lead & 0x0Fu : lead & 0x07u;
  for (size_t i = 1; i < size; ++i) c = (c << 6) | (static_cast<unsigned char>(text[*at + i]) & 0x3Fu);
  *at += size;
  return c;
}

void append_char(std::string* out, char32_t c) {
  if (c < 0x80) {
    *out += static_cast<char>(c);
    return;
  }
  if (c < 0x800) {
    *out += static_cast<char>(0xC0 | (c >> 6));
  } else {
    if (c < 0x10000) {
      *out += static_cast<char>(0xE0 | (c >> 12));
    } else {
      *out += static_cast<char>(0xF0 | (c >> 18));
      *out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    }
    *out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
  }
  *out += static_cast<char>(0x80 | (c & 0x3F));
}

size_t first_invalid_utf8(std::string_view text) noexcept {
  for (size_t at = 0; at < text.size();) {
    const unsigned char lead = static_cast<unsigned char>(text[at]);
    const size_t size = lead < 0x80                   ? 1
                        : lead >= 0xC2 && lead < 0xE0 ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
    if (size == 0 || at + size > text.size()) return at;
    for (size_t i = 1; i < size; ++i) {
      if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return at;
    }
    size_t next = at;
    const char32_t c = size == 1 ? lead : decode_char(text.substr(0, at + size), &next);
    if ((size == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) || (size == 4 && (c < 0x10000 || c > 0x10FFFF)))
      return at;
    at += size;
  }
  return std::string_view::npos;
}

}  // namespace coluber::jinja
