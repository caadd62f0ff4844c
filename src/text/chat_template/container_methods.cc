// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "text/chat_template/arguments.h"
#include "text/chat_template/methods.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

namespace {

template <size_t N>
bool among(const std::array<std::string_view, N>& words, std::string_view name) noexcept {
  return std::find(words.begin(), words.end(), name) != words.end();
}

constexpr std::array<std::string_view, 2> kSequenceMethods = {"index", "count"};
constexpr std::array<std::string_view, 9> kListOnly = {"append", "clear",  "copy",    "extend", "insert",
                                                       "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 11> kDictMethods = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                                           "pop",   "popitem", "setdefault", "update", "values"};
constexpr std::array<std::string_view, 2> kLoopMethods = {"cycle", "changed"};
constexpr std::array<std::string_view, 2> kCyclerMethods = {"next", "reset"};

Value call_sequence(Heap& heap, const Value& self, std::string_view name, const Args& args) {
  const Values& items = self.items();
  if (name == "copy") return heap.list(items);
  if (name == "count") {
    const Arguments bound(name, args, {"value"}, 1);
    return Value(static_cast<int64_t>(
        std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, bound.at(0)); })));
  }
  const Arguments bound(name, args, {"value", "start", "stop"}, 1);
  const int64_t size = static_cast<int64_t>(items.size());
  const auto clamp = [size](int64_t at) { return at < 0 ? std::max<int64_t>(at + size, 0) : std::min(at, size); };
  const int64_t stop = clamp(bound.integer(2, size));
  for (int64_t i = clamp(bound.integer(1, 0)); i < stop; ++i) {
    if (equal(items[static_cast<size_t>(i)], bound.at(0))) return Value(i);
  }
  raise_type("{} is not in {}", to_repr(bound.at(0), heap), type_name(self));
}

Value dict_view(Heap& heap, const Value& self, std::string_view name) {
  View view;
  view.type = name == "items" ? "dict_items" : name == "keys" ? "dict_keys" : "dict_values";
  for (const auto& [key, value] : self.dict().entries) {
    view.items.push_back(name == "items" ? heap.tuple({key, value}) : name == "keys" ? key : value);
  }
  return heap.view(std::move(view));
}

Value call_dict(Heap& heap, const Value& self, std::string_view name, const Args& args) {
  if (name == "get") {
    const Arguments bound(name, args, {"key", "default"}, 1);
    const Value* found = self.dict().find(bound.at(0));
    return found != nullptr ? *found : bound.value(1, Value());
  }
  if (name == "fromkeys") {
    const Arguments bound(name, args, {"iterable", "value"}, 1);
    Dict made;
    for (const Value& key : iterate(bound.at(0), heap)) made.set(key, bound.value(1, Value()));
    return heap.dict(std::move(made));
  }
  [[maybe_unused]] const Arguments none(name, args, {});
  if (name == "copy") {
    Dict made;
    for (const auto& [key, value] : self.dict().entries) made.set(key, value);
    return heap.dict(std::move(made));
  }
  return dict_view(heap, self, name);
}

}  // namespace

bool changes_object(const Value& self, std::string_view name) noexcept {
  if (self.is_list()) return name != "copy" && among(kListOnly, name);
  return self.is_dict() &&
         (name == "clear" || name == "pop" || name == "popitem" || name == "setdefault" || name == "update");
}

std::string unsafe_message(const Value& self, std::string_view name) {
  return fmt::format(
      "access to attribute '{}' of '{}' object is unsafe: values cannot be changed in a chat template; make a new one, "
      "as in "
      "{{% set x = x + [item] %}}",
      name, type_name(self));
}

bool has_method(const Value& self, std::string_view name) noexcept {
  switch (self.kind()) {
    case Kind::kString:
      return has_string_method(name);
    case Kind::kList:
      return among(kSequenceMethods, name) || among(kListOnly, name);
    case Kind::kTuple:
      return among(kSequenceMethods, name);
    case Kind::kView:
      return self.view().is_range() && among(kSequenceMethods, name);
    case Kind::kDict:
      return among(kDictMethods, name);
    case Kind::kInt:
    case Kind::kBool:
      return name == "bit_length";
    case Kind::kFloat:
      return name == "is_integer";
    case Kind::kObject:
      if (self.object_as<Loop>() != nullptr) return among(kLoopMethods, name);
      return self.object_as<Cycler>() != nullptr && among(kCyclerMethods, name);
    default:
      return false;
  }
}

Value call_method(Interpreter& in, const Value& self, std::string_view name, const Args& args) {
  Heap& heap = in.heap();
  heap.step();
  if (changes_object(self, name)) raise(FaultKind::kSecurity, "{}", unsafe_message(self, name));
  switch (self.kind()) {
    case Kind::kString:
      return call_string_method(in, self, name, args);
    case Kind::kList:
      return call_sequence(heap, self, name, args);
    case Kind::kTuple:
      return call_sequence(heap, self, name, args);
    case Kind::kView:
      return call_sequence(heap, heap.list(self.view().items), name, args);
    case Kind::kDict:
      return call_dict(heap, self, name, args);
    case Kind::kInt:
    case Kind::kBool: {
      const int64_t value = self.integer();
      uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
      int64_t bits = 0;
      for (; magnitude > 0; magnitude >>= 1) ++bits;
      return Value(bits);
    }
    case Kind::kFloat:
      return Value(self.real() == static_cast<double>(static_cast<int64_t>(std::clamp(self.real(), -9e18, 9e18))));
    default:
      raise_type("'{}' object has no method '{}'", type_name(self), name);
  }
}

}  // namespace coluber::jinja
