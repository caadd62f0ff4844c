// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "text/chat_template/arguments.h"
#include "text/chat_template/filters.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

namespace {

Value filter_map(Interpreter& in, const Value& value, const Args& args) {
  Heap& heap = in.heap();
  Values out;
  const bool by_attribute = args.positional.empty() && !args.keyword.empty() &&
                            std::any_of(args.keyword.begin(), args.keyword.end(),
                                        [](const auto& entry) { return entry.first == "attribute"; });
  if (by_attribute) {
    const Value *path = nullptr, *fallback = nullptr;
    for (const auto& [word, given] : args.keyword) {
      if (word == "attribute")
        path = &given;
      else if (word == "default")
        fallback = &given;
      else
        raise_type("Unexpected keyword argument '{}'", word);
    }
    if (path == nullptr) raise_type("map requires a filter argument");
    if (!truthy(value)) return heap.iterator("generator", {});
    for (const Value& item : iterate(value, heap)) {
      heap.step();
      out.push_back(follow_attribute(in, item, *path, fallback));
    }
    return heap.iterator("generator", std::move(out));
  }
  if (args.positional.empty()) raise_type("map requires a filter argument");
  if (!args.positional[0].is_string())
    raise_type("map requires a filter's name, not '{}'", type_name(args.positional[0]));
  Args rest{Values(args.positional.begin() + 1, args.positional.end()), args.keyword};
  if (!truthy(value)) return heap.iterator("generator", {});
  for (const Value& item : iterate(value, heap)) out.push_back(call_filter(in, args.positional[0].str(), item, rest));
  return heap.iterator("generator", std::move(out));
}

Value select(Interpreter& in, const Value& value, const Args& args, bool wanted, bool by_attribute) {
  Heap& heap = in.heap();
  if (!truthy(value)) return heap.iterator("generator", {});
  size_t at = 0;
  if (by_attribute && args.positional.empty()) raise_type("Missing parameter for attribute name");
  const Value path = by_attribute ? args.positional[at++] : Value();
  std::string test;
  if (at < args.positional.size()) {
    if (!args.positional[at].is_string())
      raise_type("a test's name must be a string, not '{}'", type_name(args.positional[at]));
    test = args.positional[at++].str();
  }
  const Args rest{Values(args.positional.begin() + static_cast<std::ptrdiff_t>(at), args.positional.end()),
                  args.keyword};
  Values out;
  for (const Value& item : iterate(value, heap)) {
    heap.step();
    const Value looked_at = by_attribute ? follow_attribute(in, item, path) : item;
    const bool passes = test.empty() ? truthy(looked_at) : call_test(in, test, looked_at, rest);
    if (passes == wanted) out.push_back(item);
  }
  return heap.iterator("generator", std::move(out));
}

Value filter_select(Interpreter& in, const Value& value, const Args& args) {
  return select(in, value, args, true, false);
}
Value filter_reject(Interpreter& in, const Value& value, const Args& args) {
  return select(in, value, args, false, false);
}
Value filter_selectattr(Interpreter& in, const Value& value, const Args& args) {
  return select(in, value, args, true, true);
}
Value filter_rejectattr(Interpreter& in, const Value& value, const Args& args) {
  return select(in, value, args, false, true);
}

constexpr Filter kSelectionFilters[] = {
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
};

}  // namespace

FilterTable selection_filters() noexcept { return {std::begin(kSelectionFilters), std::end(kSelectionFilters)}; }

}  // namespace coluber::jinja
