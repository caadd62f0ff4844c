// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/value.h"

#include <algorithm>

#include "text/chat_template/fault.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

namespace {
constexpr size_t kIndexFrom = 9;
constexpr int64_t kValueBytes = static_cast<int64_t>(sizeof(Value));
constexpr int64_t kObjectBytes = 64;    // of the shared block around a value
constexpr int64_t kBytesPerStep = 256;  // copying so many bytes costs about as much as one step of the interpreter
constexpr int kMaxNesting = 400;

int depth_above(int depth) {
  if (depth >= kMaxNesting)
    raise(FaultKind::kLimit, "lists and dictionaries are nested more than {} deep", kMaxNesting);
  return depth + 1;
}

int depth_of(const Values& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth_above(depth);
}

}  // namespace

int Value::depth() const {
  switch (kind()) {
    case Kind::kList:
    case Kind::kTuple:
      return list().depth;
    case Kind::kDict:
      return dict().depth;
    case Kind::kView:
      return view().depth;
    case Kind::kIterator:
      return iterator().depth;
    default:
      return 0;
  }
}

void Budget::step(int64_t count) {
  steps_left_ -= count;
  if (steps_left_ < 0) {
    raise(FaultKind::kLimit,
          "the template did not finish within {} steps (a loop or a recursion without end?); raise max_steps if it is "
          "meant to",
          max_steps_);
  }
}

void Budget::hold(int64_t bytes) {
  if (live_bytes_ + bytes > max_live_bytes_) {
    raise(FaultKind::kLimit, "the template needs more than {} bytes of memory for its values", max_live_bytes_);
  }
  live_bytes_ += bytes;
  step(bytes / kBytesPerStep);
}

void Budget::check_text(int64_t bytes) const {
  if (bytes > max_text_bytes_) {
    raise(FaultKind::kLimit, "the template makes a text of more than {} bytes, the limit of one rendering",
          max_text_bytes_);
  }
}

void Text::append(std::string_view more, bool input) {
  if (more.empty()) return;
  if (runs.empty() && input && !bytes.empty()) runs.push_back({bytes.size(), false});
  bytes.append(more);
  if (runs.empty() && !input) return;
  if (!runs.empty() && runs.back().input == input) {
    runs.back().end = bytes.size();
  } else {
    runs.push_back({bytes.size(), input});
  }
}

void Text::append(const Text& more, size_t begin, size_t end) {
  const std::string_view whole = more.bytes;
  if (more.runs.empty()) return append(whole.substr(begin, end - begin), false);
  auto run =
      std::upper_bound(more.runs.begin(), more.runs.end(), begin, [](size_t at, const Run& r) { return at < r.end; });
  for (; begin < end && run != more.runs.end(); ++run) {
    const size_t stop = std::min(end, run->end);
    append(whole.substr(begin, stop - begin), run->input);
    begin = stop;
  }
}

bool Text::any_input() const noexcept {
  return std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.input; });
}

const void* Value::identity() const noexcept {
  switch (kind()) {
    case Kind::kUndefined:
      return std::get<Undefined>(data_).message.get();
    case Kind::kString:
      return std::get<std::shared_ptr<const Text>>(data_).get();
    case Kind::kList:
      return std::get<std::shared_ptr<const List>>(data_).get();
    case Kind::kTuple:
      return std::get<Tuple>(data_).list.get();
    case Kind::kDict:
      return std::get<std::shared_ptr<const Dict>>(data_).get();
    case Kind::kView:
      return std::get<std::shared_ptr<const View>>(data_).get();
    case Kind::kIterator:
      return std::get<std::shared_ptr<Iterator>>(data_).get();
    case Kind::kObject:
      return std::get<Object*>(data_);
    default:
      return nullptr;
  }
}

int64_t Dict::find_slot(const Value& key, size_t hash) const {
  if (index_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (equal(entries[i].first, key)) return static_cast<int64_t>(i);
    }
    return -1;
  }
  const auto [first, last] = index_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (equal(entries[it->second].first, key)) return static_cast<int64_t>(it->second);
  }
  return -1;
}

const Value* Dict::find(const Value& key) const {
  const int64_t slot = find_slot(key, hash_of(key));
  return slot < 0 ? nullptr : &entries[static_cast<size_t>(slot)].second;
}

const Value* Dict::find(std::string_view key) const {
  if (index_.empty()) {
    for (const auto& [name, value] : entries) {
      if (name.is_string() && name.str() == key) return &value;
    }
    return nullptr;
  }
  const auto [first, last] = index_.equal_range(std::hash<std::string_view>{}(key));
  for (auto it = first; it != last; ++it) {
    const auto& [name, value] = entries[it->second];
    if (name.is_string() && name.str() == key) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  const size_t hash = hash_of(key);
  const int64_t slot = find_slot(key, hash);
  if (slot >= 0) {
    entries[static_cast<size_t>(slot)].second = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() < kIndexFrom) return;
  if (entries.size() == kIndexFrom) {
    for (size_t i = 0; i + 1 < entries.size(); ++i) index_.emplace(hash_of(entries[i].first), i);
  }
  index_.emplace(hash, entries.size() - 1);
}

Value Heap::text(Text text) {
  check_text(static_cast<int64_t>(text.bytes.size()));
  text.charge =
      Charge(this, kObjectBytes + static_cast<int64_t>(text.bytes.capacity() + text.runs.capacity() * sizeof(Run)));
  return Value(std::make_shared<const Text>(std::move(text)));
}

Value Heap::string(std::string bytes, bool input) {
  Text made;
  made.bytes = std::move(bytes);
  if (input && !made.bytes.empty()) made.runs.push_back({made.bytes.size(), true});
  return text(std::move(made));
}

Value Heap::part(const Text& whole, size_t begin, size_t end) {
  Text made;
  if (begin < end) made.append(whole, begin, end);
  return text(std::move(made));
}

Value Heap::list(Values items) {
  Charge charge(this, kObjectBytes + kValueBytes * static_cast<int64_t>(items.capacity()));
  const int depth = depth_of(items);
  return Value(std::make_shared<const List>(List{std::move(items), false, depth, std::move(charge)}));
}

Value Heap::tuple(Values items) {
  Charge charge(this, kObjectBytes + kValueBytes * static_cast<int64_t>(items.capacity()));
  const int depth = depth_of(items);
  return Value(Tuple{std::make_shared<const List>(List{std::move(items), false, depth, std::move(charge)})});
}

Value Heap::group(Value name, Value members) {
  Charge charge(this, kObjectBytes + 2 * kValueBytes);
  Values items{std::move(name), std::move(members)};
  const int depth = depth_of(items);
  return Value(Tuple{std::make_shared<const List>(List{std::move(items), true, depth, std::move(charge)})});
}

Value Heap::dict(Dict dict) {
  int depth = 0;
  for (const auto& [key, value] : dict.entries) depth = std::max({depth, key.depth(), value.depth()});
  dict.depth = depth_above(depth);
  dict.charge = Charge(this, kObjectBytes + 4 * kValueBytes * static_cast<int64_t>(dict.entries.size()));
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

Value Heap::view(View view) {
  view.depth = depth_of(view.items);
  view.charge = Charge(this, kObjectBytes + kValueBytes * static_cast<int64_t>(view.items.capacity()));
  return Value(std::make_shared<const View>(std::move(view)));
}

Value Heap::iterator(std::string_view type, Values items) {
  Charge charge(this, kObjectBytes + kValueBytes * static_cast<int64_t>(items.capacity()));
  const int depth = depth_of(items);
  return Value(std::make_shared<Iterator>(Iterator{type, std::move(items), 0, depth, std::move(charge)}));
}

Value constant_string(std::string bytes, bool input) {
  Text made;
  made.bytes = std::move(bytes);
  if (input && !made.bytes.empty()) made.runs.push_back({made.bytes.size(), true});
  return Value(std::make_shared<const Text>(std::move(made)));
}

Value make_undefined(std::string message) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(message))});
}

}  // namespace coluber::jinja
