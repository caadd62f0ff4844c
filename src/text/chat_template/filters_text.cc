// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "text/chat_template/arguments.h"
#include "text/chat_template/filters.h"
#include "text/chat_template/json_dump.h"
#include "text/chat_template/methods.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/python.h"
#include "text/chat_template/python_unicode.h"
#include "text/chat_template/string_format.h"

namespace coluber::jinja {

Value ignore_case(Heap& heap, const Value& value) {
  return value.is_string() ? heap.string(lower(value.str()), value.text().any_input()) : value;
}

namespace {

// Jinja's soft_str: what is a string stays what it is.
Value soft_str(Interpreter& in, const Value& value) {
  if (value.is_string()) return value;
  Text out;
  append_str(&out, value, in.heap());
  return in.heap().text(std::move(out));
}

Value method(Interpreter& in, const Value& value, std::string_view name, const Args& args) {
  return call_string_method(in, soft_str(in, value), name, args);
}

Value filter_upper(Interpreter& in, const Value& value, const Args& args) { return method(in, value, "upper", args); }
Value filter_lower(Interpreter& in, const Value& value, const Args& args) { return method(in, value, "lower", args); }
Value filter_capitalize(Interpreter& in, const Value& value, const Args& args) {
  return method(in, value, "capitalize", args);
}
Value filter_trim(Interpreter& in, const Value& value, const Args& args) { return method(in, value, "strip", args); }
Value filter_string(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("string", args);
  return soft_str(in, value);
}

Value filter_center(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("center", args, {"width"});
  return center(in.heap(), soft_str(in, value).text(), bound.integer(0, 80), " ", 0);
}

Value filter_title(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("title", args);
  const Value text = soft_str(in, value);
  const std::string_view from = text.str();
  std::string out;
  for (size_t at = 0; at < from.size();) {
    const size_t begin = at;
    const char32_t c = decode_char(from, &at);
    const bool splits = c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
    if (splits) {
      out += from.substr(begin, at - begin);
    } else {
      // The whole rest of the word at once: lower case looks at neighbours.
      size_t end = at;
      while (end < from.size()) {
        size_t next = end;
        const char32_t d = decode_char(from, &next);
        if (d == '-' || d == '(' || d == '{' || d == '[' || d == '<' || is_space(d)) break;
        end = next;
      }
      out += upper(from.substr(begin, at - begin)) + lower(from.substr(at, end - at));
      at = end;
    }
  }
  return in.heap().string(std::move(out), text.text().any_input());
}

Value filter_replace(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("replace", args, {"old", "new", "count"}, 2);
  const Value from = soft_str(in, bound.at(0)), to = soft_str(in, bound.at(1));
  const int64_t count = bound.given_not_none(2) ? bound.integer(2, -1) : -1;
  return replace(in.heap(), soft_str(in, value).text(), from.str(), to.text(), count);
}

Value filter_format(Interpreter& in, const Value& value, const Args& args) {
  if (!args.positional.empty() && !args.keyword.empty())
    raise_type("can't handle positional and keyword arguments at the same time");
  Heap& heap = in.heap();
  const Value format = soft_str(in, value);
  Value values;
  if (!args.keyword.empty()) {
    Dict words;
    for (const auto& [word, item] : args.keyword) words.set(heap.string(word), item);
    values = heap.dict(std::move(words));
  } else {
    values = heap.tuple(args.positional);
  }
  return heap.string(percent_format(heap, format.str(), values), any_input(format) || any_input(values));
}

Value filter_indent(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("indent", args, {"width", "first", "blank"});
  Heap& heap = in.heap();
  if (value.is_undefined()) raise(FaultKind::kUndefined, "{}", value.undefined_message());
  if (!value.is_string()) raise_type("unsupported operand type(s) for +=: '{}' and 'str'", type_name(value));
  Text indention;
  if (bound.given(0) && bound.at(0).is_string()) {
    indention.append(bound.at(0).text());
  } else {
    const int64_t width = std::max<int64_t>(bound.integer(0, 4), 0);
    heap.check_text(width);
    indention.append(std::string(static_cast<size_t>(width), ' '), false);
  }
  const bool first = bound.flag(1, false), blank = bound.flag(2, false);
  Text with_newline;
  with_newline.append(value.text());
  with_newline.append("\n", false);
  const auto spans = line_spans(with_newline.bytes, false);
  Text out;
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto [begin, end] = spans[i];
    if (i > 0) out.append("\n", false);
    if (i > 0 ? blank || begin < end : first) out.append(indention);
    if (begin < end) out.append(with_newline, begin, end);
    heap.check_text(static_cast<int64_t>(out.bytes.size()));
    heap.step();
  }
  return heap.text(std::move(out));
}

Value filter_truncate(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("truncate", args, {"length", "killwords", "end", "leeway"});
  Heap& heap = in.heap();
  const int64_t length = bound.integer(0, 255), leeway = bound.given_not_none(3) ? bound.integer(3, 5) : 5;
  const Value end = bound.given(2) ? bound.at(2) : heap.string("...");
  if (!end.is_string()) raise_type("truncate(): argument 'end' must be a string");
  const int64_t end_size = char_count(end.str());
  if (length < end_size) raise_type("expected length >= {}, got {}", end_size, length);
  if (leeway < 0) raise_type("expected leeway >= 0, got {}", leeway);
  if (length_of(value) <= checked_add(length, leeway)) return value;
  if (!value.is_string()) raise_type("'{}' object cannot be truncated", type_name(value));
  const Text& text = value.text();
  size_t stop = char_offset(text.bytes, length - end_size);
  if (!bound.flag(1, false)) {
    const size_t space = std::string_view(text.bytes).substr(0, stop).rfind(' ');
    if (space != std::string_view::npos) stop = space;
  }
  Text out;
  if (stop > 0) out.append(text, 0, stop);
  out.append(end.text());
  return heap.text(std::move(out));
}

Value filter_wordcount(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("wordcount", args);
  const Value text = soft_str(in, value);
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.str().size();) {
    const char32_t c = decode_char(text.str(), &at);
    const bool word = c == '_' || is_alnum(c);
    words += word && !inside;
    inside = word;
  }
  return Value(words);
}

Value as_markup(Heap& heap, std::string bytes, bool input) {
  Text out;
  out.append(bytes, input);
  out.markup = true;
  return heap.text(std::move(out));
}

Value filter_escape(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("escape", args);
  const Value text = soft_str(in, value);
  return text.text().markup ? text : as_markup(in.heap(), escaped_html(text.str()), text.text().any_input());
}

Value filter_forceescape(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("forceescape", args);
  const Value text = soft_str(in, value);
  return as_markup(in.heap(), escaped_html(text.str()), text.text().any_input());
}

Value filter_safe(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("safe", args);
  Text out;
  append_str(&out, value, in.heap());
  out.markup = true;
  return in.heap().text(std::move(out));
}

Value filter_tojson(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonDumpOptions options;
  options.ascii = bound.flag(0, false);
  options.sort_keys = bound.flag(3, false);
  if (bound.given_not_none(1)) {
    if (bound.at(1).is_string()) {
      options.indent = bound.at(1).str();
    } else {
      const int64_t width = std::max<int64_t>(bound.integer(1, 0), 0);
      in.heap().check_text(width);
      options.indent = std::string(static_cast<size_t>(width), ' ');
    }
    options.item_separator = ",";
  }
  if (bound.given_not_none(2)) {
    const Values pair = iterate(bound.at(2), in.heap());
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      raise_type("tojson(): separators must be two strings");
    options.item_separator = pair[0].str();
    options.key_separator = pair[1].str();
  }
  return in.heap().string(dump_json(in.heap(), value, options), any_input(value));
}

std::string url_quoted(std::string_view text, bool query) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && (is_alnum(byte) || c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query))) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
  return out;
}

Value filter_urlencode(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("urlencode", args);
  Heap& heap = in.heap();
  if (value.is_string() || !is_iterable(value))
    return heap.string(url_quoted(to_str(value, heap), false), any_input(value));
  std::string out;
  const auto put = [&](const Value& key, const Value& item) {
    if (!out.empty()) out += '&';
    out += url_quoted(to_str(key, heap), true) + "=" + url_quoted(to_str(item, heap), true);
  };
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict().entries) put(key, item);
  } else {
    for (const Value& pair : iterate(value, heap)) {
      const Values items = iterate(pair, heap);
      if (items.size() != 2) raise_type("urlencode: expected pairs, found {} elements", items.size());
      put(items[0], items[1]);
    }
  }
  return heap.string(std::move(out), any_input(value));
}

Value filter_xmlattr(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("xmlattr", args, {"autospace"});
  Heap& heap = in.heap();
  if (!value.is_dict()) raise_type("xmlattr: expected a mapping, found '{}'", type_name(value));
  std::string out;
  for (const auto& [key, item] : value.dict().entries) {
    if (item.is_none() || item.is_undefined()) continue;
    const std::string word = to_str(key, heap);
    for (const char c : word) {
      if (c == '/' || c == '>' || c == '=' || is_space(static_cast<unsigned char>(c)))
        raise_type("Invalid character in attribute name: {}", string_repr(word));
    }
    if (!out.empty()) out += ' ';
    out += escaped_html(word) + "=\"" + escaped_html(to_str(item, heap)) + "\"";
  }
  if (bound.flag(0, true) && !out.empty()) out.insert(0, " ");
  return heap.string(std::move(out), any_input(value));
}

constexpr Filter kTextFilters[] = {
    {"upper", filter_upper},     {"lower", filter_lower},       {"capitalize", filter_capitalize},
    {"title", filter_title},     {"trim", filter_trim},         {"string", filter_string},
    {"center", filter_center},   {"replace", filter_replace},   {"format", filter_format},
    {"indent", filter_indent},   {"truncate", filter_truncate}, {"wordcount", filter_wordcount},
    {"e", filter_escape},        {"escape", filter_escape},     {"forceescape", filter_forceescape},
    {"safe", filter_safe},       {"tojson", filter_tojson},     {"urlencode", filter_urlencode},
    {"xmlattr", filter_xmlattr},
};

}  // namespace

FilterTable text_filters() noexcept { return {std::begin(kTextFilters), std::end(kTextFilters)}; }

}  // namespace coluber::jinja
