// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "text/chat_template/arguments.h"
#include "text/chat_template/filters.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/python.h"
#include "text/chat_template/python_unicode.h"

namespace coluber::jinja {

namespace {

// Python's int(text, base); nothing where Python raises ValueError.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  text = strip_left(strip_right(text));
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const char mark = text.size() > 1 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  const int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
  if (marked != 0 && (base == marked || base == 0)) {
    text.remove_prefix(2);
    base = marked;
    if (!text.empty() && text[0] == '_') text.remove_prefix(1);
  }
  if (base == 0) base = 10;
  int64_t value = 0;
  bool digit_before = false;
  for (const char c : text) {
    if (c == '_' && digit_before) {
      digit_before = false;
      continue;
    }
    const int digit = c >= '0' && c <= '9'                     ? c - '0'
                      : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                               : 99;
    if (digit >= base) return std::nullopt;
    value = negative ? checked_sub(checked_mul(value, base), digit) : checked_add(checked_mul(value, base), digit);
    digit_before = true;
  }
  if (!digit_before) return std::nullopt;
  return value;
}

// Python's float(text).
std::optional<double> parse_real(std::string_view text) {
  text = strip_left(strip_right(text));
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] == '_' && i > 0 && digit(i - 1) && digit(i + 1)) continue;
    plain += text[i];
  }
  std::string word = lower(plain);
  if (!word.empty() && (word[0] == '+' || word[0] == '-')) word.erase(0, 1);
  const bool special = word == "inf" || word == "infinity" || word == "nan";
  if (word.empty() || (!special && word.find_first_not_of("0123456789.e+-") != word.npos)) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain.c_str(), &end);
  if (end != plain.c_str() + plain.size()) return std::nullopt;
  return value;
}

std::optional<double> to_real(const Value& value) {
  if (value.is_undefined()) raise(FaultKind::kUndefined, "{}", value.undefined_message());
  if (value.is_number()) return value.real();
  return value.is_string() ? parse_real(value.str()) : std::nullopt;
}

int64_t truncated(double value) {
  if (std::fabs(value) >= 0x1p63)
    raise(FaultKind::kLimit, "{} does not fit 64 bits, the largest integers of a template", float_repr(value));
  return static_cast<int64_t>(value);
}

Value filter_int(Interpreter&, const Value& value, const Args& args) {
  const Arguments bound("int", args, {"default", "base"});
  const Value fallback = bound.value(0, Value(int64_t{0}));
  if (value.is_integral()) return Value(value.integer());
  if (value.is_float() && std::isinf(value.real())) raise_type("cannot convert float infinity to integer");
  if (value.is_string()) {
    if (const auto parsed = parse_integer(value.str(), bound.integer(1, 10))) return Value(*parsed);
  }
  const std::optional<double> real = to_real(value);
  if (!real.has_value() || !std::isfinite(*real)) return fallback;
  return Value(truncated(*real));
}

Value filter_float(Interpreter&, const Value& value, const Args& args) {
  const Arguments bound("float", args, {"default"});
  const std::optional<double> real = to_real(value);
  return real.has_value() ? Value(*real) : bound.value(0, Value(0.0));
}

Value filter_abs(Interpreter&, const Value& value, const Args& args) {
  expect_no_arguments("abs", args);
  if (value.is_undefined()) raise(FaultKind::kUndefined, "{}", value.undefined_message());
  if (value.is_float()) return Value(std::fabs(value.real()));
  if (!value.is_integral()) raise_type("bad operand type for abs(): '{}'", type_name(value));
  return value.integer() < 0 ? negate(value) : Value(value.integer());
}

// Rounds to `digits` decimals, halves to even, on the exact binary value: Python's round().
double rounded(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 320) return value;
  if (digits < -310) return std::copysign(0.0, value);
  if (digits >= 0) return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
  const double power = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / power) * power;
}

int64_t rounded(int64_t value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -18) return 0;
  int64_t power = 1;
  for (int64_t i = 0; i < -digits; ++i) power *= 10;
  int64_t remainder = value % power;
  int64_t down = value - remainder;
  if (remainder < 0) {
    remainder += power;
    down = checked_sub(down, power);
  }
  const bool up = remainder * 2 > power || (remainder * 2 == power && (down / power) % 2 != 0);
  return up ? checked_add(down, power) : down;
}

Value filter_round(Interpreter&, const Value& value, const Args& args) {
  const Arguments bound("round", args, {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.given(1) ? bound.text(1).bytes : "common";
  if (method != "common" && method != "ceil" && method != "floor") raise_type("method must be common, ceil or floor");
  if (value.is_undefined()) raise(FaultKind::kUndefined, "{}", value.undefined_message());
  if (!value.is_number()) raise_type("type {} doesn't define __round__ method", type_name(value));
  if (method == "common")
    return value.is_float() ? Value(rounded(value.real(), precision)) : Value(rounded(value.integer(), precision));
  const double power = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.real() * power;
  if (!std::isfinite(scaled)) raise_type("cannot convert float {} to integer", std::isnan(scaled) ? "NaN" : "infinity");
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power + 0.0);
}

Value filter_filesizeformat(Interpreter& in, const Value& value, const Args& args) {
  const bool binary = Arguments("filesizeformat", args, {"binary"}).flag(0, false);
  const std::optional<double> bytes = to_real(value);
  if (!bytes.has_value()) raise_type("filesizeformat: expected a number, found '{}'", type_name(value));
  const double base = binary ? 1024 : 1000;
  if (*bytes == 1) return in.heap().string("1 Byte");
  if (*bytes < base) return in.heap().string(fmt::format("{} Bytes", truncated(*bytes)));
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  for (; i < kPrefixes.size(); ++i) {
    unit *= base;
    if (*bytes < unit) break;
  }
  i = std::min(i, kPrefixes.size() - 1);
  const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
  return in.heap().string(fmt::format("{:.1f} {}{}B", base * *bytes / unit, prefix, binary ? "i" : ""));
}

constexpr Filter kNumberFilters[] = {
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
    {"filesizeformat", filter_filesizeformat},
};

}  // namespace

FilterTable number_filters() noexcept { return {std::begin(kNumberFilters), std::end(kNumberFilters)}; }

}  // namespace coluber::jinja
