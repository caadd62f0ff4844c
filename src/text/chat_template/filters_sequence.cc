// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "text/chat_template/arguments.h"
#include "text/chat_template/filters.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

namespace {

Value filter_length(Interpreter&, const Value& value, const Args& args) {
  expect_no_arguments("length", args);
  return Value(length_of(value));
}

Value filter_list(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("list", args);
  return in.heap().list(iterate(value, in.heap()));
}

Value filter_default(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("default", args, {"default_value", "boolean"});
  if (!value.is_undefined() && !(bound.flag(1, false) && !truthy(value))) return value;
  return bound.given(0) ? bound.at(0) : in.heap().string({});
}

Value filter_join(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("join", args, {"d", "attribute"});
  Heap& heap = in.heap();
  Text separator;
  if (bound.given(0)) append_str(&separator, bound.at(0), heap);
  const Values items = iterate(value, heap);
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    heap.step();
    if (i > 0) {
      out.append(separator);
      heap.check_text(static_cast<int64_t>(out.bytes.size()));
    }
    append_str(&out, bound.given_not_none(1) ? follow_attribute(in, items[i], bound.at(1)) : items[i], heap);
  }
  return heap.text(std::move(out));
}

Value filter_first(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("first", args);
  if (value.is_iterator()) {
    Iterator& it = value.iterator();
    return it.next < it.items.size() ? it.items[it.next++] : make_undefined("No first item, sequence was empty.");
  }
  if (value.is_string() && !value.str().empty()) return in.heap().part(value.text(), 0, char_size(value.str(), 0));
  const Values items = iterate(value, in.heap());
  return items.empty() ? make_undefined("No first item, sequence was empty.") : items.front();
}

Value filter_last(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("last", args);
  if (value.is_iterator() || !is_iterable(value)) raise_type("'{}' object is not reversible", type_name(value));
  const Values items = iterate(value, in.heap());
  return items.empty() ? make_undefined("No last item, sequence was empty.") : items.back();
}

std::string_view reverse_type(const Value& value) {
  if (value.is_list()) return "list_reverseiterator";
  if (value.is_dict()) return "dict_reversekeyiterator";
  if (!value.is_view()) return "reversed";
  return value.view().is_range()             ? "range_iterator"
         : value.view().type == "dict_items" ? "dict_reverseitemiterator"
                                             : "dict_reversevalueiterator";
}

Value filter_reverse(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("reverse", args);
  Heap& heap = in.heap();
  if (value.is_string()) return slice(heap, value, std::nullopt, std::nullopt, -1);
  if (!is_iterable(value)) raise_type("argument must be iterable");
  Values items = iterate(value, heap);
  std::reverse(items.begin(), items.end());
  return value.is_iterator() ? heap.list(std::move(items)) : heap.iterator(reverse_type(value), std::move(items));
}

// The order of sorted(): by keys, stable, also in reverse.
std::vector<size_t> sorted_order(Heap& heap, const std::vector<Values>& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto before = [&](size_t a, size_t b) {
    heap.step();
    for (size_t i = 0; i < keys[a].size(); ++i) {
      if (!equal(keys[a][i], keys[b][i])) return less(keys[a][i], keys[b][i]);
    }
    return false;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return reverse ? before(b, a) : before(a, b); });
  return order;
}

Value picked(Heap& heap, const Values& items, const std::vector<size_t>& order) {
  Values out;
  out.reserve(order.size());
  for (const size_t i : order) out.push_back(items[i]);
  return heap.list(std::move(out));
}

// "a,b.c" as several attributes, as only `sort` takes them.
Values split_paths(const Value& path) {
  if (!path.is_string()) return {path};
  Values out;
  const std::string& words = path.str();
  for (size_t begin = 0; begin <= words.size();) {
    const size_t end = std::min(words.find(',', begin), words.size());
    out.push_back(constant_string(words.substr(begin, end - begin)));
    begin = end + 1;
  }
  return out;
}

Value filter_sort(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("sort", args, {"reverse", "case_sensitive", "attribute"});
  const bool cased = bound.flag(1, false);
  const Values items = iterate(value, in.heap());
  const Values paths = bound.given(2) ? split_paths(bound.at(2)) : Values{Value()};
  std::vector<Values> keys;
  for (const Value& item : items) {
    Values& key = keys.emplace_back();
    for (const Value& path : paths) {
      Value part = follow_attribute(in, item, path);
      key.push_back(cased ? std::move(part) : ignore_case(in.heap(), part));
    }
  }
  return picked(in.heap(), items, sorted_order(in.heap(), keys, bound.flag(0, false)));
}

Value filter_dictsort(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.given(1) ? bound.text(1).bytes : "key";
  if (by != "key" && by != "value") raise_type("You can only sort by either \"key\" or \"value\"");
  if (value.is_undefined()) raise(FaultKind::kUndefined, "{}", value.undefined_message());
  if (!value.is_dict()) raise_type("'{}' object has no attribute 'items'", type_name(value));
  Values items;
  std::vector<Values> keys;
  for (const auto& [key, item] : value.dict().entries) {
    items.push_back(in.heap().tuple({key, item}));
    const Value& wanted = by == "key" ? key : item;
    keys.push_back({bound.flag(0, false) ? wanted : ignore_case(in.heap(), wanted)});
  }
  return picked(in.heap(), items, sorted_order(in.heap(), keys, bound.flag(2, false)));
}

Value filter_items(Interpreter& in, const Value& value, const Args& args) {
  expect_no_arguments("items", args);
  if (!value.is_undefined() && !value.is_dict()) raise_type("Can only get item pairs from a mapping.");
  Values items;
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict().entries) items.push_back(in.heap().tuple({key, item}));
  }
  return in.heap().iterator("generator", std::move(items));
}

Value filter_unique(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("unique", args, {"case_sensitive", "attribute"});
  Dict seen;
  Values out;
  for (const Value& item : iterate(value, in.heap())) {
    in.heap().step();
    const Value part = follow_attribute(in, item, bound.value(1, Value()));
    const Value key = bound.flag(0, false) ? part : ignore_case(in.heap(), part);
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value());
    out.push_back(item);
  }
  return in.heap().iterator("generator", std::move(out));
}

Value filter_groupby(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  Heap& heap = in.heap();
  const Values items = iterate(value, heap);
  const Value fallback = bound.value(1, Value());
  std::vector<Values> keys;
  for (const Value& item : items) {
    const Value key = follow_attribute(in, item, bound.at(0), &fallback);
    keys.push_back({bound.flag(2, false) ? key : ignore_case(heap, key)});
  }
  const std::vector<size_t> order = sorted_order(heap, keys, false);
  Values groups;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    Values members;
    while (end < order.size() && equal(keys[order[end]][0], keys[order[begin]][0]))
      members.push_back(items[order[end++]]);
    const Value name = follow_attribute(in, members[0], bound.at(0), &fallback);
    groups.push_back(heap.group(name, heap.list(std::move(members))));
    begin = end;
  }
  return heap.list(std::move(groups));
}

Value filter_sum(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("sum", args, {"attribute", "start"});
  Value total = bound.value(1, Value(int64_t{0}));
  if (total.is_string()) raise_type("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : iterate(value, in.heap())) {
    in.heap().step();
    total =
        binary(in.heap(), Op::kAdd, total, bound.given_not_none(0) ? follow_attribute(in, item, bound.at(0)) : item);
  }
  return total;
}

Value extreme(Interpreter& in, const Value& value, const Args& args, bool largest) {
  const Arguments bound(largest ? "max" : "min", args, {"case_sensitive", "attribute"});
  const Values items = iterate(value, in.heap());
  if (items.empty()) return make_undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    const Value part = follow_attribute(in, item, bound.value(1, Value()));
    return bound.flag(0, false) ? part : ignore_case(in.heap(), part);
  };
  size_t best = 0;
  Value best_key = key_of(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    in.heap().step();
    Value key = key_of(items[i]);
    if (largest ? less(best_key, key, ">") : less(key, best_key)) {
      best = i;
      best_key = std::move(key);
    }
  }
  return items[best];
}

Value filter_max(Interpreter& in, const Value& value, const Args& args) { return extreme(in, value, args, true); }
Value filter_min(Interpreter& in, const Value& value, const Args& args) { return extreme(in, value, args, false); }

Value filter_batch(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("batch", args, {"linecount", "fill_with"}, 1);
  Heap& heap = in.heap();
  const int64_t size = bound.integer(0, 1);
  Values rows, row;
  for (const Value& item : iterate(value, heap)) {
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(heap.list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    if (bound.given_not_none(1)) {
      heap.check_text(size);
      while (static_cast<int64_t>(row.size()) < size) row.push_back(bound.at(1)), heap.step();
    }
    rows.push_back(heap.list(std::move(row)));
  }
  return heap.iterator("generator", std::move(rows));
}

Value filter_slice(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("slice", args, {"slices", "fill_with"}, 1);
  Heap& heap = in.heap();
  const Values items = iterate(value, heap);
  const int64_t count = bound.integer(0, 1), size = static_cast<int64_t>(items.size());
  if (count == 0) raise_type("integer division or modulo by zero");
  Values columns;
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    heap.step();
    const int64_t length = size / count + (i < size % count ? 1 : 0);
    Values column(items.begin() + at, items.begin() + at + length);
    at += length;
    if (bound.given_not_none(1) && i >= size % count) column.push_back(bound.at(1));
    columns.push_back(heap.list(std::move(column)));
  }
  return heap.iterator("generator", std::move(columns));
}

Value filter_attr(Interpreter& in, const Value& value, const Args& args) {
  const Arguments bound("attr", args, {"name"}, 1);
  if (value.is_undefined()) raise(FaultKind::kUndefined, "{}", value.undefined_message());
  bool found = false;
  Value result = in.object_attribute(value, bound.text(0).bytes, &found);
  return found ? result
               : make_undefined(fmt::format("'{}' has no attribute '{}'", object_repr(value), bound.text(0).bytes));
}

constexpr Filter kSequenceFilters[] = {
    {"length", filter_length},   {"count", filter_length},      {"list", filter_list},
    {"default", filter_default}, {"d", filter_default},         {"join", filter_join},
    {"first", filter_first},     {"last", filter_last},         {"reverse", filter_reverse},
    {"sort", filter_sort},       {"dictsort", filter_dictsort}, {"items", filter_items},
    {"unique", filter_unique},   {"groupby", filter_groupby},   {"sum", filter_sum},
    {"max", filter_max},         {"min", filter_min},           {"batch", filter_batch},
    {"slice", filter_slice},     {"attr", filter_attr},
};

}  // namespace

FilterTable sequence_filters() noexcept { return {std::begin(kSequenceFilters), std::end(kSequenceFilters)}; }

}  // namespace coluber::jinja
