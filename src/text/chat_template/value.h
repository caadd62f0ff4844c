// SPDX-License-Identifier: Apache-2.0
//
// The values of the template language: Python's, as far as templates can make them. Strings, lists and dictionaries
// never change once made (the sandbox forbids it), so they are shared and cannot form cycles; the things that do change
// (namespaces, macros, loops) are Objects, owned by the interpreter for the length of one rendering. A string remembers
// which of its bytes came from the conversation. Values belong to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace coluber::jinja {

class Heap;
class Value;
using Values = std::vector<Value>;

// Memory, work and depth that one rendering may still use.
class Budget {
 public:
  Budget(int64_t max_steps, int64_t max_live_bytes, int64_t max_text_bytes)
      : steps_left_(max_steps),
        max_steps_(max_steps),
        max_live_bytes_(max_live_bytes),
        max_text_bytes_(max_text_bytes) {}
  void step(int64_t count = 1);  // throws Fault(kLimit)
  void hold(int64_t bytes);      // throws Fault(kLimit)
  void release(int64_t bytes) noexcept { live_bytes_ -= bytes; }
  void check_text(int64_t bytes) const;  // a string of so many bytes is about to be made
  int64_t max_text_bytes() const noexcept { return max_text_bytes_; }

 private:
  int64_t steps_left_, max_steps_, max_live_bytes_, max_text_bytes_;
  int64_t live_bytes_ = 0;
};

// Gives back what a value held when it dies.
class Charge {
 public:
  Charge() = default;
  Charge(Budget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) { budget_->hold(bytes_); }
  Charge(Charge&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  // Work done on the value that this belongs to.
  void step(size_t count) const {
    if (budget_ != nullptr) budget_->step(static_cast<int64_t>(count));
  }
  ~Charge() {
    if (budget_ != nullptr) budget_->release(bytes_);
  }

 private:
  Budget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

// UTF-8 with its origin: bytes up to `end` (and from the end of the run before) are the conversation's where `input`.
struct Run {
  size_t end;
  bool input;
};
struct Text {
  std::string bytes;
  std::vector<Run> runs;  // empty: all of it is the template's
  bool markup = false;    // made by `escape` or `safe`: what is added to it is escaped
  Charge charge;

  void append(std::string_view more, bool input);
  void append(const Text& more) { append(more, 0, more.bytes.size()); }
  void append(const Text& more, size_t begin, size_t end);
  bool any_input() const noexcept;
};

struct List {
  Values items;
  bool is_group = false;  // a pair of `groupby`, with the names grouper and list
  int depth = 1;          // of lists and dictionaries in one another: bounded, as walks over them recurse
  Charge charge;
};

struct Dict;

// What Python prints as dict_items([...]) or range(0, 3): read again and again, no list.
struct View {
  std::string_view type;  // "dict_items", "dict_keys", "dict_values", "range"
  std::string repr;       // range only
  Values items;
  int64_t start = 0, step = 1;  // range only
  int depth = 1;
  Charge charge;
  bool is_range() const noexcept { return type == "range"; }
};

// A generator or another iterator: what was read is gone.
struct Iterator {
  std::string_view type;  // "generator", "list_reverseiterator", ...
  Values items;
  size_t next = 0;
  int depth = 1;
  Charge charge;
};

// Namespaces, macros, loops, functions, bound methods.
struct Object {
  virtual ~Object() = default;
  virtual std::string_view type_name() const noexcept = 0;
  virtual bool callable() const noexcept { return false; }
  virtual void append_repr(std::string* out, Heap& heap, int depth) const;  // "<type object>"
};

struct Undefined {
  std::shared_ptr<const std::string> message;
};
struct Tuple {
  std::shared_ptr<const List> list;
};

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,
  kIterator,
  kObject
};

class Value {
 public:
  Value() : data_(std::monostate{}) {}  // None
  explicit Value(Undefined value) : data_(std::move(value)) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::shared_ptr<const Text> value) : data_(std::move(value)) {}
  explicit Value(std::shared_ptr<const List> value) : data_(std::move(value)) {}
  explicit Value(Tuple value) : data_(std::move(value)) {}
  explicit Value(std::shared_ptr<const Dict> value) : data_(std::move(value)) {}
  explicit Value(std::shared_ptr<const View> value) : data_(std::move(value)) {}
  explicit Value(std::shared_ptr<Iterator> value) : data_(std::move(value)) {}
  explicit Value(Object* value) : data_(value) {}

  Kind kind() const noexcept { return static_cast<Kind>(data_.index()); }
  bool is_undefined() const noexcept { return kind() == Kind::kUndefined; }
  bool is_none() const noexcept { return kind() == Kind::kNone; }
  bool is_bool() const noexcept { return kind() == Kind::kBool; }
  bool is_int() const noexcept { return kind() == Kind::kInt; }
  bool is_integral() const noexcept { return is_int() || is_bool(); }
  bool is_float() const noexcept { return kind() == Kind::kFloat; }
  bool is_number() const noexcept { return is_integral() || is_float(); }
  bool is_string() const noexcept { return kind() == Kind::kString; }
  bool is_list() const noexcept { return kind() == Kind::kList; }
  bool is_tuple() const noexcept { return kind() == Kind::kTuple; }
  bool is_dict() const noexcept { return kind() == Kind::kDict; }
  bool is_view() const noexcept { return kind() == Kind::kView; }
  bool is_iterator() const noexcept { return kind() == Kind::kIterator; }
  bool is_object() const noexcept { return kind() == Kind::kObject; }

  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return is_bool() ? static_cast<int64_t>(boolean()) : std::get<int64_t>(data_); }
  double real() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integer()); }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& str() const { return text().bytes; }
  const Values& items() const {
    return is_list() ? std::get<std::shared_ptr<const List>>(data_)->items : std::get<Tuple>(data_).list->items;
  }
  bool is_group() const { return is_tuple() && std::get<Tuple>(data_).list->is_group; }
  const List& list() const {
    return is_list() ? *std::get<std::shared_ptr<const List>>(data_) : *std::get<Tuple>(data_).list;
  }
  int depth() const;  // 0 for what holds no other values
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  const View& view() const { return *std::get<std::shared_ptr<const View>>(data_); }
  Iterator& iterator() const { return *std::get<std::shared_ptr<Iterator>>(data_); }
  Object* object() const { return std::get<Object*>(data_); }
  template <typename T>
  T* object_as() const {
    return is_object() ? dynamic_cast<T*>(object()) : nullptr;
  }
  const std::string& undefined_message() const { return *std::get<Undefined>(data_).message; }
  const void* identity() const noexcept;  // equal for the same object, as Python's `is`; null for numbers and None

 private:
  std::variant<Undefined, std::monostate, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, Tuple, std::shared_ptr<const Dict>, std::shared_ptr<const View>,
               std::shared_ptr<Iterator>, Object*>
      data_;
};

// In order of insertion; a hash index once it is worth it. Keys are compared as Python does: 1, 1.0 and True are one
// key.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  int depth = 1;
  Charge charge;

  const Value* find(const Value& key) const;  // throws Fault where the key cannot be hashed
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);

 private:
  int64_t find_slot(const Value& key, size_t hash) const;
  std::unordered_multimap<size_t, size_t> index_;  // hash to place, filled from the ninth entry on
};

// Arguments of a call, a filter or a test.
struct Args {
  Values positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

// The makers of values charge the budget for their size.
class Heap : public Budget {
 public:
  using Budget::Budget;
  Value string(std::string bytes, bool input = false);
  Value text(Text text);
  // A part of `whole` in bytes, with its origins.
  Value part(const Text& whole, size_t begin, size_t end);
  Value list(Values items);
  Value tuple(Values items);
  Value group(Value name, Value members);
  Value dict(Dict dict);
  Value view(View view);
  Value iterator(std::string_view type, Values items);
};

Value constant_string(std::string bytes, bool input = false);  // not charged: part of a template or of its variables
Value make_undefined(std::string message);

}  // namespace coluber::jinja
