// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/globals.h"

#include <array>
#include <ctime>

#include "text/chat_template/arguments.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

namespace {

constexpr std::array<std::string_view, 8> kGlobals = {"range",  "namespace",       "dict",         "cycler",
                                                      "joiner", "raise_exception", "strftime_now", "lipsum"};
constexpr int64_t kMaxRange = 100000;  // the sandbox's own limit

int64_t range_argument(const Value& value) {
  if (value.is_undefined()) raise(FaultKind::kUndefined, "{}", value.undefined_message());
  if (!value.is_integral()) raise_type("'{}' object cannot be interpreted as an integer", type_name(value));
  return value.integer();
}

Value make_range(Heap& heap, const Args& args) {
  if (!args.keyword.empty()) raise_type("range() takes no keyword arguments");
  const size_t count = args.positional.size();
  if (count == 0 || count > 3) raise_type("range expected at least 1 argument and at most 3, got {}", count);
  const int64_t start = count > 1 ? range_argument(args.positional[0]) : 0;
  const int64_t stop = range_argument(args.positional[count > 1 ? 1 : 0]);
  const int64_t step = count > 2 ? range_argument(args.positional[2]) : 1;
  if (step == 0) raise_type("range() arg 3 must not be zero");
  View view;
  view.type = "range";
  view.start = start;
  view.step = step;
  view.repr =
      step == 1 ? fmt::format("range({}, {})", start, stop) : fmt::format("range({}, {}, {})", start, stop, step);
  const __int128 span = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const __int128 size = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (size > kMaxRange)
    raise(FaultKind::kLimit, "range too big: chat templates may make ranges of at most {} numbers", kMaxRange);
  heap.step(static_cast<int64_t>(size) / 8);
  view.items.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < static_cast<int64_t>(size); ++i) view.items.emplace_back(start + i * step);
  return heap.view(std::move(view));
}

// dict(...) and namespace(...): pairs or a mapping, then keywords.
Dict mapping_of(Heap& heap, std::string_view function, const Args& args) {
  Dict dict;
  if (args.positional.size() > 1)
    raise_type("{} expected at most 1 argument, got {}", function, args.positional.size());
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is_dict()) {
      for (const auto& [key, value] : from.dict().entries) dict.set(key, value);
    } else {
      for (const Value& pair : iterate(from, heap)) {
        if (!is_iterable(pair)) raise_type("cannot convert dictionary update sequence element to a sequence");
        const Values items = iterate(pair, heap);
        if (items.size() != 2)
          raise_type("dictionary update sequence element has length {}; 2 is required", items.size());
        dict.set(items[0], items[1]);
      }
    }
  }
  for (const auto& [word, value] : args.keyword) dict.set(heap.string(word), value);
  return dict;
}

Value make_namespace(Interpreter& in, const Args& args) {
  Dict dict = mapping_of(in.heap(), "namespace", args);
  auto* space = in.own<Namespace>();
  for (auto& [key, value] : dict.entries) {
    if (key.is_string()) space->attributes.emplace_back(key.str(), std::move(value));
  }
  return Value(space);
}

}  // namespace

std::span<const std::string_view> global_names() noexcept { return kGlobals; }

std::string format_time(Heap& heap, std::string_view format, int64_t clock) {
  const std::time_t seconds = static_cast<std::time_t>(clock);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::string out;
  // One directive at a time: strftime cannot tell an empty result from a buffer that is too small.
  for (size_t at = 0; at < format.size();) {
    if (format[at] != '%' || at + 1 >= format.size()) {
      out += format[at++];
      continue;
    }
    size_t end = at + 1;
    while (end + 1 < format.size() &&
           (format[end] == '-' || format[end] == '_' || format[end] == '^' || format[end] == '#'))
      ++end;
    const char directive = format[end];
    const std::string pattern(format.substr(at, end + 1 - at));
    at = end + 1;
    if (directive == 'f') {
      out += "000000";
    } else if (directive != 'z' && directive != 'Z') {  // a clock without a zone prints none
      char buffer[256];
      out.append(buffer, std::strftime(buffer, sizeof buffer, pattern.c_str(), &parts));
    }
    heap.check_text(static_cast<int64_t>(out.size()));
  }
  return out;
}

Value call_global(Interpreter& in, std::string_view name, const Args& args) {
  Heap& heap = in.heap();
  if (name == "range") return make_range(heap, args);
  if (name == "namespace") return make_namespace(in, args);
  if (name == "dict") return heap.dict(mapping_of(heap, "dict", args));
  if (name == "raise_exception") {
    const Arguments bound(name, args, {"message"}, 1);
    throw Fault{FaultKind::kRaised, 0, to_str(bound.at(0), heap)};
  }
  if (name == "strftime_now") {
    const Arguments bound(name, args, {"format"}, 1);
    return heap.string(format_time(heap, bound.text(0).bytes, in.clock()));
  }
  if (name == "joiner") {
    const Arguments bound(name, args, {"sep"});
    auto* joiner = in.own<Joiner>();
    joiner->separator = bound.value(0, heap.string(", "));
    return Value(joiner);
  }
  if (name == "cycler") {
    if (args.positional.empty()) raise_type("at least one item has to be provided");
    auto* cycler = in.own<Cycler>();
    cycler->items = args.positional;
    return Value(cycler);
  }
  raise_type("{}() makes random text and is not supported in chat templates", name);
}

}  // namespace coluber::jinja
