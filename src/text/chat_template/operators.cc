// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/operators.h"

#include <algorithm>
#include <cmath>

#include "text/chat_template/fault.h"
#include "text/chat_template/python.h"
#include "text/chat_template/string_format.h"

namespace coluber::jinja {

namespace {

std::string_view symbol(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    default:
      return "** or pow()";
  }
}

[[noreturn]] void unsupported(Op op, const Value& a, const Value& b) {
  raise_type("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), type_name(a), type_name(b));
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) raise_type("0.0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent & 1) result = checked_mul(result, base);
    exponent >>= 1;
    if (exponent > 0) base = checked_mul(base, base);
  }
  return Value(result);
}

Value integers(Op op, int64_t a, int64_t b) {
  switch (op) {
    case Op::kAdd:
      return Value(checked_add(a, b));
    case Op::kSub:
      return Value(checked_sub(a, b));
    case Op::kMul:
      return Value(checked_mul(a, b));
    case Op::kPow:
      return integer_power(a, b);
    default:
      break;
  }
  if (b == 0) raise_type("{}", op == Op::kDiv ? "division by zero" : "integer division or modulo by zero");
  if (op == Op::kDiv) return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == Op::kMod ? Value(int64_t{0}) : Value(checked_sub(0, a));
  const int64_t remainder = a % b;
  const bool down = remainder != 0 && (remainder < 0) != (b < 0);
  return op == Op::kMod ? Value(down ? remainder + b : remainder) : Value(a / b - (down ? 1 : 0));
}

Value reals(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return Value(a + b);
    case Op::kSub:
      return Value(a - b);
    case Op::kMul:
      return Value(a * b);
    case Op::kPow: {
      if (a == 0 && b < 0) raise_type("0.0 cannot be raised to a negative power");
      if (a < 0 && std::floor(b) != b) raise_type("complex numbers are not supported");
      const double result = std::pow(a, b);
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
        raise_type("(34, 'Numerical result out of range')");
      return Value(result);
    }
    default:
      break;
  }
  if (b == 0)
    raise_type("{}", op == Op::kDiv   ? "float division by zero"
                     : op == Op::kMod ? "float modulo"
                                      : "float floor division by zero");
  if (op == Op::kDiv) return Value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == Op::kMod) return Value(remainder == 0 ? std::copysign(0.0, b) : remainder);
  const double quotient = (a - remainder) / b;
  const double floored = std::floor(quotient);
  return Value(quotient - floored > 0.5 ? floored + 1 : floored);
}

Value repeat(Heap& heap, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  if (value.is_string()) {
    const Text& text = value.text();
    if (!text.bytes.empty()) {
      if (count > heap.max_text_bytes()) heap.check_text(count);
      heap.check_text(count * static_cast<int64_t>(text.bytes.size()));
    } else {
      count = 0;
    }
    Text out;
    out.markup = text.markup;
    heap.step(count / 16);
    for (; count > 0; --count) out.append(text);
    return heap.text(std::move(out));
  }
  const Values& items = value.items();
  if (items.empty()) count = 0;
  const Charge charge(&heap,
                      std::min<int64_t>(count, int64_t{1} << 40) * static_cast<int64_t>(items.size() * sizeof(Value)));
  Values out;
  for (; count > 0; --count) out.insert(out.end(), items.begin(), items.end());
  return value.is_list() ? heap.list(std::move(out)) : heap.tuple(std::move(out));
}

Value add(Heap& heap, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    heap.check_text(static_cast<int64_t>(a.str().size() + b.str().size()));
    Text out;
    out.bytes.reserve(a.str().size() + b.str().size());
    out.markup = a.text().markup || b.text().markup;
    const auto put = [&out](const Text& text) {
      if (out.markup && !text.markup) {
        out.append(escaped_html(text.bytes), text.any_input());
      } else {
        out.append(text);
      }
    };
    put(a.text()), put(b.text());
    return heap.text(std::move(out));
  }
  if (a.kind() == b.kind() && (a.is_list() || a.is_tuple())) {
    Values out;
    out.reserve(a.items().size() + b.items().size());
    out.insert(out.end(), a.items().begin(), a.items().end());
    out.insert(out.end(), b.items().begin(), b.items().end());
    return a.is_list() ? heap.list(std::move(out)) : heap.tuple(std::move(out));
  }
  if (a.is_string()) raise_type("can only concatenate str (not \"{}\") to str", type_name(b));
  if (a.is_list()) raise_type("can only concatenate list (not \"{}\") to list", type_name(b));
  if (a.is_tuple()) raise_type("can only concatenate tuple (not \"{}\") to tuple", type_name(b));
  unsupported(Op::kAdd, a, b);
}

}  // namespace

std::string escaped_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value binary(Heap& heap, Op op, const Value& a, const Value& b) {
  if (op == Op::kMod && a.is_string())
    return heap.string(percent_format(heap, a.str(), b), any_input(a) || any_input(b));
  if (a.is_undefined()) raise(FaultKind::kUndefined, "{}", a.undefined_message());
  if (b.is_undefined()) raise(FaultKind::kUndefined, "{}", b.undefined_message());
  if (a.is_integral() && b.is_integral()) return integers(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return reals(op, a.real(), b.real());
  if (op == Op::kAdd) return add(heap, a, b);
  if (op == Op::kMul) {
    const auto sequence = [](const Value& value) { return value.is_string() || value.is_list() || value.is_tuple(); };
    if (sequence(a) && b.is_integral()) return repeat(heap, a, b.integer());
    if (sequence(b) && a.is_integral()) return repeat(heap, b, a.integer());
    if (sequence(a) || sequence(b))
      raise_type("can't multiply sequence by non-int of type '{}'", type_name(sequence(a) ? b : a));
  }
  unsupported(op, a, b);
}

bool compare(Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::kEq:
      return equal(a, b);
    case Op::kNe:
      return !equal(a, b);
    case Op::kLt:
      return less(a, b, "<");
    case Op::kLe:
      return less_equal(a, b, "<=");
    case Op::kGt:
      return less(b, a, ">");
    case Op::kGe:
      return less_equal(b, a, ">=");
    case Op::kIn:
      return contains(b, a);
    default:
      return !contains(b, a);
  }
}

Value negate(const Value& value) {
  if (value.is_undefined()) raise(FaultKind::kUndefined, "{}", value.undefined_message());
  if (value.is_integral()) return Value(checked_sub(0, value.integer()));
  if (value.is_float()) return Value(-value.real());
  raise_type("bad operand type for unary -: '{}'", type_name(value));
}

Value plus(const Value& value) {
  if (value.is_undefined()) raise(FaultKind::kUndefined, "{}", value.undefined_message());
  if (value.is_integral()) return Value(value.integer());
  if (value.is_float()) return value;
  raise_type("bad operand type for unary +: '{}'", type_name(value));
}

Value slice(Heap& heap, const Value& value, const std::optional<int64_t>& start, const std::optional<int64_t>& stop,
            const std::optional<int64_t>& step) {
  const int64_t by = step.value_or(1);
  if (by == 0) raise_type("slice step cannot be zero");
  const int64_t size = length_of(value);
  const auto clamp = [&](int64_t at) {
    if (at < 0) at = at < -size ? -1 : at + size;
    return by > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  int64_t from = by > 0 ? 0 : size - 1, to = by > 0 ? size : -1;
  if (start) from = clamp(*start);
  if (stop) to = clamp(*stop);
  if (value.is_string()) {
    const Text& text = value.text();
    heap.step(static_cast<int64_t>(text.bytes.size()) / 64);
    if (by == 1) {
      if (from >= to) return heap.string({});
      const size_t begin = char_offset(text.bytes, from);
      return heap.part(text, begin, begin + char_offset(std::string_view(text.bytes).substr(begin), to - from));
    }
    std::vector<size_t> offsets;
    for (size_t at = 0; at < text.bytes.size(); at += char_size(text.bytes, at)) offsets.push_back(at);
    Text out;
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
      const size_t at = offsets[static_cast<size_t>(i)];
      out.append(text, at, at + char_size(text.bytes, at));
      if (by > 0 ? by > to - i : by < to - i) break;
      i += by;
    }
    return heap.text(std::move(out));
  }
  const Values& items = value.is_view() ? value.view().items : value.items();
  Values out;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    out.push_back(items[static_cast<size_t>(i)]);
    if (by > 0 ? by > to - i : by < to - i) break;
    i += by;
  }
  if (value.is_list()) return heap.list(std::move(out));
  if (value.is_tuple()) return heap.tuple(std::move(out));
  View view;
  view.type = "range";
  view.start = value.view().start + from * value.view().step;
  view.step = value.view().step * by;
  const int64_t end = value.view().start + to * value.view().step;
  view.repr = view.step == 1 ? fmt::format("range({}, {})", view.start, end)
                             : fmt::format("range({}, {}, {})", view.start, end, view.step);
  view.items = std::move(out);
  return heap.view(std::move(view));
}

}  // namespace coluber::jinja
