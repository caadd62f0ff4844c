// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/string_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/chat_template/fault.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

namespace {

constexpr int64_t kMaxPrecision = 400;

// What both kinds of format ask of one value.
struct Spec {
  std::string fill = " ";
  char align = '\0';  // '<' '>' '^' '='; none: by type
  char sign = '-';
  bool alternate = false, zero = false;
  char group = '\0';  // ',' or '_'
  int64_t width = 0, precision = -1;
  char type = '\0';
};

int64_t read_number(std::string_view text, size_t* at, std::string_view what) {
  int64_t value = -1;
  for (; *at < text.size() && text[*at] >= '0' && text[*at] <= '9'; ++*at) {
    value = std::max<int64_t>(value, 0) * 10 + (text[*at] - '0');
    if (value > (int64_t{1} << 31)) raise_type("Too many decimal digits in the {} of a format string", what);
  }
  return value;
}

std::string padded(Heap& heap, const Spec& spec, std::string sign, std::string body, char natural) {
  const int64_t size = char_count(sign) + char_count(body);
  if (spec.width <= size) return sign + body;
  heap.check_text(spec.width);
  const char align = spec.align != '\0' ? spec.align : natural;
  const int64_t pad = spec.width - size;
  const int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
  std::string before, after;
  for (int64_t i = 0; i < left; ++i) before += spec.fill;
  for (int64_t i = left; i < pad; ++i) after += spec.fill;
  return align == '=' ? sign + before + body + after : before + sign + body + after;
}

std::string grouped(std::string digits, char mark, size_t size) {
  if (mark == '\0') return digits;
  size_t end = digits.find_first_not_of("0123456789abcdefABCDEF");
  if (end == digits.npos) end = digits.size();
  while (end > size) {
    end -= size;
    digits.insert(end, 1, mark);
  }
  return digits;
}

std::string integer_digits(uint64_t magnitude, char type) {
  switch (type) {
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'b':
      return fmt::format("{:b}", magnitude);
    default:
      return std::to_string(magnitude);
  }
}

std::string sign_of(bool negative, char mode) { return negative ? "-" : mode == '+' ? "+" : mode == ' ' ? " " : ""; }

std::string format_integer(Heap& heap, int64_t value, const Spec& spec) {
  const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string sign = sign_of(value < 0, spec.sign);
  if (spec.alternate && (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b'))
    sign += std::string("0") + spec.type;
  const bool decimal =
      spec.type == '\0' || spec.type == 'd' || spec.type == 'n' || spec.type == 'i' || spec.type == 'u';
  std::string digits = grouped(integer_digits(magnitude, spec.type), spec.group, decimal ? 3 : 4);
  if (spec.precision > static_cast<int64_t>(digits.size())) {
    digits.insert(0, static_cast<size_t>(std::min(spec.precision, kMaxPrecision)) - digits.size(), '0');
  }
  return padded(heap, spec, std::move(sign), std::move(digits), '>');
}

std::string real_digits(double magnitude, char type, int precision, bool alternate) {
  if (std::isinf(magnitude)) return type >= 'A' && type <= 'Z' ? "INF" : "inf";
  if (std::isnan(magnitude)) return type >= 'A' && type <= 'Z' ? "NAN" : "nan";
  const char pattern[] = {
      '%', alternate ? '#' : '.', alternate ? '.' : '*', alternate ? '*' : type, alternate ? type : '\0', '\0'};
  std::string out(static_cast<size_t>(std::snprintf(nullptr, 0, pattern, precision, magnitude)), '\0');
  std::snprintf(out.data(), out.size() + 1, pattern, precision, magnitude);
  return out;
}

std::string format_real(Heap& heap, double value, const Spec& spec) {
  std::string sign = sign_of(std::signbit(value) && !std::isnan(value), spec.sign);
  const double magnitude = std::fabs(value);
  if (spec.precision > kMaxPrecision)
    raise_type("precision too big: {}, the limit is {}", spec.precision, kMaxPrecision);
  std::string body;
  if (spec.type == '\0' && spec.precision < 0) {
    body = float_repr(magnitude);
  } else if (spec.type == '%') {
    body = real_digits(magnitude * 100, 'f', spec.precision < 0 ? 6 : static_cast<int>(spec.precision), false) + "%";
  } else {
    const char type = spec.type == '\0' || spec.type == 'n' ? 'g' : spec.type;
    body = real_digits(magnitude, type, spec.precision < 0 ? 6 : static_cast<int>(spec.precision), spec.alternate);
    if (spec.type == '\0' && body.find_first_of(".en") == body.npos) body += ".0";
  }
  return padded(heap, spec, std::move(sign), grouped(std::move(body), spec.group, 3), '>');
}

std::string format_text(Heap& heap, std::string_view text, const Spec& spec) {
  if (spec.precision >= 0) text = text.substr(0, char_offset(text, spec.precision));
  return padded(heap, spec, {}, std::string(text), '<');
}

// Reads the values of a % format, one after the other or by name.
class PercentFormatter {
 public:
  PercentFormatter(Heap& heap, std::string_view format, const Value& values)
      : heap_(heap), format_(format), values_(values) {}

  std::string run() {
    while (at_ < format_.size()) {
      const size_t percent = std::min(format_.find('%', at_), format_.size());
      out_.append(format_.substr(at_, percent - at_));
      at_ = percent + 1;
      if (percent < format_.size()) directive();
      heap_.check_text(static_cast<int64_t>(out_.size()));
    }
    if (!named_ && used_ < available() && !values_.is_dict() && !values_.is_undefined() &&
        !(values_.is_list() && used_ == 0)) {
      raise_type("not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

 private:
  size_t available() const { return values_.is_tuple() ? values_.items().size() : 1; }

  Value next_value() {
    if (used_ >= available() || named_) raise_type("not enough arguments for format string");
    return values_.is_tuple() ? values_.items()[used_++] : (++used_, values_);
  }

  Value named_value() {
    size_t depth = 1, end = at_ + 1;
    for (; end < format_.size() && depth > 0; ++end) depth += format_[end] == '(' ? 1 : format_[end] == ')' ? -1 : 0;
    if (depth > 0) raise_type("incomplete format key");
    if (!values_.is_dict()) raise_type("format requires a mapping");
    const std::string key(format_.substr(at_ + 1, end - at_ - 2));
    at_ = end;
    named_ = true;
    const Value* found = values_.dict().find(std::string_view(key));
    if (found == nullptr) raise_type("{}", string_repr(key));
    return *found;
  }

  void directive() {
    Spec spec;
    std::optional<Value> value;
    if (at_ < format_.size() && format_[at_] == '(') value = named_value();
    for (; at_ < format_.size() && std::string_view("-+ #0").find(format_[at_]) != std::string_view::npos; ++at_) {
      const char flag = format_[at_];
      if (flag == '-') spec.align = '<';
      if (flag == '+') spec.sign = '+';
      if (flag == ' ' && spec.sign != '+') spec.sign = ' ';
      if (flag == '#') spec.alternate = true;
      if (flag == '0') spec.zero = true;
    }
    spec.width = number_or_star("width");
    if (spec.width < 0) spec.width = 0;
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(number_or_star("precision"), 0);
    }
    while (at_ < format_.size() && (format_[at_] == 'l' || format_[at_] == 'h' || format_[at_] == 'L')) ++at_;
    if (at_ >= format_.size()) raise_type("incomplete format");
    spec.type = format_[at_++];
    if (spec.type == '%') {
      out_ += '%';
      return;
    }
    convert(spec, value.has_value() ? *value : next_value());
  }

  int64_t number_or_star(std::string_view what) {
    if (at_ < format_.size() && format_[at_] == '*') {
      ++at_;
      const Value value = next_value();
      if (!value.is_integral()) raise_type("* wants int");
      return value.integer();
    }
    return read_number(format_, &at_, what);
  }

  void convert(Spec spec, const Value& value) {
    const auto zero_fill = [&spec] {
      if (spec.zero && spec.align == '\0') spec.fill = "0", spec.align = '=';
    };
    switch (spec.type) {
      case 's':
        if (spec.align == '\0') spec.align = '>';
        out_ += format_text(heap_, to_str(value, heap_), spec);
        return;
      case 'r':
      case 'a':
        if (spec.align == '\0') spec.align = '>';
        out_ += format_text(heap_, to_repr(value, heap_), spec);
        return;
      case 'c': {
        if (spec.align == '\0') spec.align = '>';
        spec.precision = -1;
        std::string c;
        if (value.is_string() && char_count(value.str()) == 1) {
          c = value.str();
        } else if (value.is_integral() && value.integer() >= 0 && value.integer() < 0x110000 &&
                   (value.integer() >> 11) != 0x1B) {
          append_char(&c, static_cast<char32_t>(value.integer()));
        } else {
          raise_type("%c requires int or char");
        }
        out_ += format_text(heap_, c, spec);
        return;
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        const bool truncates = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
        if (!value.is_integral() && !(truncates && value.is_float() && std::fabs(value.real()) < 0x1p63)) {
          raise_type("%{} format: {} is required, not {}", spec.type, truncates ? "a real number" : "an integer",
                     type_name(value));
        }
        zero_fill();
        out_ += format_integer(heap_, value.is_float() ? static_cast<int64_t>(value.real()) : value.integer(), spec);
        return;
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!value.is_number()) raise_type("must be real number, not {}", type_name(value));
        zero_fill();
        out_ += format_real(heap_, value.real(), spec);
        return;
      default:
        raise_type("unsupported format character '{}' (0x{:x})", spec.type,
                   static_cast<unsigned>(static_cast<unsigned char>(spec.type)));
    }
  }

  Heap& heap_;
  std::string_view format_;
  const Value& values_;
  size_t at_ = 0, used_ = 0;
  bool named_ = false;
  std::string out_;
};

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Args& args) : in_(in), args_(args) {}

  std::string run(std::string_view format, int depth) {
    if (depth > 2) raise_type("Max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at++];
      if (c != '{' && c != '}') {
        out += c;
      } else if (at < format.size() && format[at] == c) {
        out += c;
        ++at;
      } else if (c == '}') {
        raise_type("Single '}}' encountered in format string");
      } else {
        out += field(format, &at, depth);
      }
      in_.heap().check_text(static_cast<int64_t>(out.size()));
    }
    return out;
  }

 private:
  std::string field(std::string_view format, size_t* at, int depth) {
    size_t end = *at, nesting = 1;
    size_t colon = format.npos, bang = format.npos;
    for (bool bracket = false; end < format.size(); ++end) {
      const char c = format[end];
      if (c == '[' && colon == format.npos) bracket = true;
      if (c == ']') bracket = false;
      if (bracket) continue;
      if (c == '{') ++nesting;
      if (c == '}' && --nesting == 0) break;
      if (c == ':' && colon == format.npos && nesting == 1) colon = end;
      if (c == '!' && colon == format.npos && bang == format.npos && nesting == 1) bang = end;
    }
    if (end >= format.size()) raise_type("expected '}}' before end of string");
    const size_t spec_begin = colon == format.npos ? end : colon + 1;
    const size_t name_end = bang != format.npos ? bang : colon != format.npos ? colon : end;
    Value value = lookup(format.substr(*at, name_end - *at));
    if (bang != format.npos)
      value = converted(value, format.substr(bang + 1, (colon != format.npos ? colon : end) - bang - 1));
    const std::string spec = run(format.substr(spec_begin, end - spec_begin), depth + 1);
    *at = end + 1;
    return apply(value, spec);
  }

  Value converted(const Value& value, std::string_view how) {
    if (how == "s") return in_.heap().string(to_str(value, in_.heap()));
    if (how == "r" || how == "a") return in_.heap().string(to_repr(value, in_.heap()));
    raise_type("Unknown conversion specifier '{}'", how);
  }

  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(name.substr(0, end));
    for (size_t at = end; at < name.size();) {
      if (name[at] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", at + 1), name.size());
        value = in_.attribute(value, in_.heap().string(std::string(name.substr(at + 1, stop - at - 1))));
        at = stop;
      } else {
        const size_t stop = name.find(']', at);
        if (stop == name.npos) raise_type("Missing ']' in format string");
        const std::string key(name.substr(at + 1, stop - at - 1));
        const bool number = !key.empty() && key.size() < 18 && key.find_first_not_of("0123456789") == key.npos;
        value = in_.item(value, number ? Value(static_cast<int64_t>(std::stoll(key))) : in_.heap().string(key));
        at = stop + 1;
      }
    }
    return value;
  }

  Value first(std::string_view name) {
    if (name.empty() || name.find_first_not_of("0123456789") == name.npos) {
      if (name.size() > 9) raise_type("Too many decimal digits in format string");
      const size_t index = name.empty() ? next_++ : static_cast<size_t>(std::stoll(std::string(name)));
      if (index >= args_.positional.size())
        raise_type("Replacement index {} out of range for positional args tuple", index);
      return args_.positional[index];
    }
    for (const auto& [word, value] : args_.keyword) {
      if (word == name) return value;
    }
    raise_type("{}", string_repr(name));
  }

  static Spec parse(std::string_view text) {
    Spec spec;
    size_t at = 0;
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    if (!text.empty()) {
      const size_t size = char_size(text, 0);
      if (size < text.size() && is_align(text[size])) {
        spec.fill = text.substr(0, size);
        spec.align = text[size];
        at = size + 1;
      } else if (is_align(text[0])) {
        spec.align = text[at++];
      }
    }
    const auto flag = [&](char c) { return at < text.size() && text[at] == c ? (++at, true) : false; };
    if (flag('+'))
      spec.sign = '+';
    else if (flag(' '))
      spec.sign = ' ';
    else
      flag('-');
    spec.alternate = flag('#');
    if (flag('0')) {
      spec.zero = true;
      if (spec.align == '\0') spec.fill = "0", spec.align = '=';
    }
    spec.width = std::max<int64_t>(read_number(text, &at, "width"), 0);
    if (flag(','))
      spec.group = ',';
    else if (flag('_'))
      spec.group = '_';
    if (flag('.')) {
      spec.precision = read_number(text, &at, "precision");
      if (spec.precision < 0) raise_type("Format specifier missing precision");
    }
    if (at < text.size()) spec.type = text[at++];
    if (at < text.size()) raise_type("Invalid format specifier '{}'", text);
    return spec;
  }

  std::string apply(const Value& value, const std::string& text) {
    Heap& heap = in_.heap();
    if (text.empty()) return to_str(value, heap);
    const Spec spec = parse(text);
    const bool real_type = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != '\0';
    if (value.is_integral() && !(value.is_bool() && spec.type == 's')) {
      if (real_type) return format_real(heap, value.real(), spec);
      if (spec.type == 'c') {
        if (value.integer() < 0 || value.integer() > 0x10FFFF || (value.integer() >> 11) == 0x1B)
          raise_type("%c arg not in range(0x110000)");
        std::string c;
        append_char(&c, static_cast<char32_t>(value.integer()));
        return format_text(heap, c, spec);
      }
      if (spec.type != '\0' && std::string_view("dnxXob").find(spec.type) == std::string_view::npos) {
        raise_type("Unknown format code '{}' for object of type 'int'", spec.type);
      }
      return format_integer(heap, value.integer(), spec);
    }
    if (value.is_float()) {
      if (spec.type != '\0' && spec.type != 'n' && !real_type)
        raise_type("Unknown format code '{}' for object of type 'float'", spec.type);
      return format_real(heap, value.real(), spec);
    }
    if (!value.is_string()) raise_type("unsupported format string passed to {}.__format__", type_name(value));
    if (spec.type != '\0' && spec.type != 's')
      raise_type("Unknown format code '{}' for object of type 'str'", spec.type);
    if (spec.align == '=' && !spec.zero) raise_type("'=' alignment not allowed in string format specifier");
    Spec plain = spec;
    if (spec.zero && spec.align == '=') plain.align = '<';
    return format_text(heap, value.str(), plain);
  }

  Interpreter& in_;
  const Args& args_;
  size_t next_ = 0;
};

}  // namespace

std::string percent_format(Heap& heap, std::string_view format, const Value& values) {
  return PercentFormatter(heap, format, values).run();
}

std::string brace_format(Interpreter& in, std::string_view format, const Args& args) {
  return BraceFormatter(in, args).run(format, 0);
}

}  // namespace coluber::jinja
