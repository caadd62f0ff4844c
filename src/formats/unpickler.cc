// SPDX-License-Identifier: Apache-2.0
//
// A stack machine over values that live in one vector and refer to each other by index: no recursion, no ownership,
// whatever cycles a hostile pickle makes.
#include "formats/unpickler.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace coluber {
namespace {

constexpr size_t kMostValues = size_t{1} << 22;  // a tensor takes about 20
constexpr size_t kMostArguments = 16;
constexpr int kNewestProtocol = 5;
constexpr int64_t kMostDimensions = 64;  // PyTorch's own limit

enum class Call { kDict, kTensor, kTensorWithDType, kParameter, kSize, kStorage, kUntypedStorage, kDType };

struct Known {
  std::string_view module, name;
  Call call;
  std::string_view dtype = {};
  int64_t element_bytes = 0;
};
constexpr Known kKnown[] = {
    {"collections", "OrderedDict", Call::kDict},
    {"builtins", "dict", Call::kDict},
    {"__builtin__", "dict", Call::kDict},
    {"torch._utils", "_rebuild_tensor_v2", Call::kTensor},
    {"torch._utils", "_rebuild_tensor_v3", Call::kTensorWithDType},
    {"torch._utils", "_rebuild_parameter", Call::kParameter},
    {"torch", "Size", Call::kSize},
    {"torch.storage", "UntypedStorage", Call::kUntypedStorage, "uint8", 1},
    {"torch", "UntypedStorage", Call::kUntypedStorage, "uint8", 1},
    {"torch", "DoubleStorage", Call::kStorage, "float64", 8},
    {"torch", "FloatStorage", Call::kStorage, "float32", 4},
    {"torch", "HalfStorage", Call::kStorage, "float16", 2},
    {"torch", "BFloat16Storage", Call::kStorage, "bfloat16", 2},
    {"torch", "LongStorage", Call::kStorage, "int64", 8},
    {"torch", "IntStorage", Call::kStorage, "int32", 4},
    {"torch", "ShortStorage", Call::kStorage, "int16", 2},
    {"torch", "CharStorage", Call::kStorage, "int8", 1},
    {"torch", "ByteStorage", Call::kStorage, "uint8", 1},
    {"torch", "BoolStorage", Call::kStorage, "bool", 1},
    {"torch", "ComplexFloatStorage", Call::kStorage, "complex64", 8},
    {"torch", "ComplexDoubleStorage", Call::kStorage, "complex128", 16},
    {"torch", "float64", Call::kDType, "float64", 8},
    {"torch", "float32", Call::kDType, "float32", 4},
    {"torch", "float16", Call::kDType, "float16", 2},
    {"torch", "bfloat16", Call::kDType, "bfloat16", 2},
    {"torch", "float8_e4m3fn", Call::kDType, "float8_e4m3fn", 1},
    {"torch", "float8_e5m2", Call::kDType, "float8_e5m2", 1},
    {"torch", "float8_e8m0fnu", Call::kDType, "float8_e8m0fnu", 1},
    {"torch", "int64", Call::kDType, "int64", 8},
    {"torch", "int32", Call::kDType, "int32", 4},
    {"torch", "int16", Call::kDType, "int16", 2},
    {"torch", "int8", Call::kDType, "int8", 1},
    {"torch", "uint64", Call::kDType, "uint64", 8},
    {"torch", "uint32", Call::kDType, "uint32", 4},
    {"torch", "uint16", Call::kDType, "uint16", 2},
    {"torch", "uint8", Call::kDType, "uint8", 1},
    {"torch", "bool", Call::kDType, "bool", 1},
};

enum class Kind : uint8_t { kMark, kOther, kInt, kText, kTuple, kList, kDict, kGlobal, kStorage, kTensor };

using Ref = uint32_t;
struct Value {
  Kind kind = Kind::kOther;
  int64_t number = 0;      // kInt; kGlobal: row of kKnown; kStorage, kTensor: place in its list
  std::string_view text;   // kText, into the pickle
  std::vector<Ref> items;  // kTuple, kList; kDict: keys and values in turn
};

struct Storage {
  std::string_view key;
  const Known* type;
  int64_t bytes;
};

class Unpickler {
 public:
  Unpickler(std::span<const std::byte> pickle, std::string_view source) : pickle_(pickle), source_(source) {}

  std::vector<PickledTensor> read() {
    while (step(byte())) {
    }
    if (stack_.size() != 1) throw wrong("it ends with {} values instead of one", stack_.size());
    return tensors_of(stack_.front());
  }

 private:
  template <typename... Args>
  Error wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(ErrorCode::kInvalidData, "{}: damaged pickle at byte {}: {}", source_, at_,
                      fmt::format(format, std::forward<Args>(args)...));
  }
  Error refused(const std::string& what) const {
    return Error(ErrorCode::kUnsupported, fmt::format("{}: {}", source_, what));
  }
  static std::string shown(std::string_view text) {
    return Json(text.size() > 200 ? std::string(text.substr(0, 200)) + "..." : std::string(text)).dump();
  }

  // Input.
  std::string_view bytes(uint64_t count) {
    if (count > pickle_.size() - at_) throw wrong("it breaks off");
    const std::string_view read(reinterpret_cast<const char*>(pickle_.data()) + at_, static_cast<size_t>(count));
    at_ += static_cast<size_t>(count);
    return read;
  }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    return value;
  }
  uint8_t byte() { return number<uint8_t>(); }
  std::string_view line() {
    const std::string_view rest(reinterpret_cast<const char*>(pickle_.data()) + at_, pickle_.size() - at_);
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) throw wrong("it breaks off inside a line");
    at_ += end + 1;
    return rest.substr(0, end);
  }

  // The stack.
  Ref make(Value value) {
    if (values_.size() >= kMostValues) throw wrong("it makes more than {} values", kMostValues);
    values_.push_back(std::move(value));
    return static_cast<Ref>(values_.size() - 1);
  }
  void push(Value value) { stack_.push_back(make(std::move(value))); }
  void push(Kind kind, int64_t number = 0) { push(Value{kind, number, {}, {}}); }
  void push_text(std::string_view text) { push(Value{Kind::kText, 0, text, {}}); }
  Ref top() const {
    if (stack_.empty() || values_[stack_.back()].kind == Kind::kMark) throw wrong("it takes a value that is not there");
    return stack_.back();
  }
  Ref pop() {
    const Ref value = top();
    stack_.pop_back();
    return value;
  }
  // What lies above the last mark, which goes.
  std::vector<Ref> pop_to_mark() {
    size_t first = stack_.size();
    while (first > 0 && values_[stack_[first - 1]].kind != Kind::kMark) --first;
    if (first == 0) throw wrong("it looks for a mark that is not there");
    std::vector<Ref> items(stack_.begin() + static_cast<ptrdiff_t>(first), stack_.end());
    stack_.resize(first - 1);
    return items;
  }
  void pop_tuple(size_t count) {
    Value tuple{Kind::kTuple, 0, {}, std::vector<Ref>(count)};
    for (size_t i = count; i-- > 0;) tuple.items[i] = pop();
    push(std::move(tuple));
  }
  Value& expect(Ref ref, Kind kind, std::string_view what) {
    if (values_[ref].kind != kind) throw wrong("expected {}", what);
    return values_[ref];
  }
  void remember(uint64_t place) {
    if (place > kMostValues) throw wrong("it remembers a value as number {}", place);
    memo_[place] = top();
  }
  void recall(uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) throw wrong("it recalls value {}, which it did not remember", place);
    stack_.push_back(found->second);
  }

  void add_items(Kind kind, const std::vector<Ref>& items) {
    Value& target = expect(top(), kind, kind == Kind::kList ? "a list" : "a dictionary");
    if (kind == Kind::kDict && items.size() % 2 != 0) throw wrong("a dictionary gets a key without a value");
    target.items.insert(target.items.end(), items.begin(), items.end());
  }
  void set_item() {
    const Ref value = pop(), key = pop();
    add_items(Kind::kDict, {key, value});
  }
  void append() {
    const Ref value = pop();
    add_items(Kind::kList, {value});
  }

  void push_long(size_t count) {
    const std::string_view digits = bytes(count);
    if (count > 8) throw wrong("an integer of {} bytes", count);
    uint64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(digits[i]);
    push(Kind::kInt, std::bit_cast<int64_t>(value));
  }

  void push_global(std::string_view module, std::string_view name) {
    for (size_t i = 0; i < std::size(kKnown); ++i) {
      if (kKnown[i].module == module && kKnown[i].name == name) return push(Kind::kGlobal, static_cast<int64_t>(i));
    }
    throw refused(fmt::format(
        "it asks for {}.{}, which is not read: only dictionaries of tensors are, and nothing of a file is executed. If "
        "you trust the file, load it with PyTorch and save its state_dict() alone, best as safetensors",
        shown(module), shown(name)));
  }
  void push_stack_global() {
    const Ref name = pop(), module = pop();
    push_global(expect(module, Kind::kText, "the name of a module").text, expect(name, Kind::kText, "a name").text);
  }

  // A copy, because making values moves them; short, because a pickle may use one tuple many times.
  std::vector<Ref> arguments(Ref ref, std::string_view what) {
    const std::vector<Ref>& items = expect(ref, Kind::kTuple, what).items;
    if (items.size() > kMostArguments) throw wrong("expected {}, found {} values", what, items.size());
    return items;
  }

  const Known& known(Ref ref) { return kKnown[expect(ref, Kind::kGlobal, "a name of PyTorch's").number]; }

  int64_t integer(Ref ref, std::string_view what) {
    const int64_t value = expect(ref, Kind::kInt, what).number;
    if (value < 0) throw wrong("expected {} of at least 0, found {}", what, value);
    return value;
  }
  std::vector<int64_t> integers(Ref ref, std::string_view what) {
    const Value& tuple = values_[ref];
    if (tuple.kind != Kind::kTuple || tuple.items.size() > kMostDimensions)
      throw wrong("expected a tuple of at most {} {}", kMostDimensions, what);
    std::vector<int64_t> list;
    for (const Ref item : tuple.items) list.push_back(integer(item, what));
    return list;
  }

  // ('storage', torch.FloatStorage, '0', 'cpu', number of elements)
  void push_storage() {
    const std::vector<Ref> id = arguments(pop(), "a storage's persistent id");
    if (id.size() < 5 || expect(id[0], Kind::kText, "the word storage").text != "storage")
      throw wrong("a persistent id that names no storage");
    const Known& type = known(id[1]);
    if (type.call != Call::kStorage && type.call != Call::kUntypedStorage) throw wrong("{} is no storage", type.name);
    Storage storage{expect(id[2], Kind::kText, "a storage's key").text, &type, 0};
    if (__builtin_mul_overflow(integer(id[4], "a storage's size"), type.element_bytes, &storage.bytes))
      throw wrong("a storage of more than 2^63 bytes");
    storages_.push_back(storage);
    push(Kind::kStorage, static_cast<int64_t>(storages_.size() - 1));
  }

  // (storage, offset, size, stride, requires_grad, hooks[, dtype[, metadata]])
  void call_tensor(const std::vector<Ref>& args, bool has_dtype) {
    if (args.size() < (has_dtype ? 7u : 4u)) throw wrong("a tensor made from {} arguments", args.size());
    const Storage& storage = storages_[static_cast<size_t>(expect(args[0], Kind::kStorage, "a storage").number)];
    const Known* type = storage.type;
    if (has_dtype) {
      type = &known(args[6]);
      if (type->call != Call::kDType) throw wrong("{} is no element type", type->name);
    }
    PickledTensor tensor;
    tensor.storage = storage.key;
    tensor.storage_bytes = storage.bytes;
    tensor.dtype_name = type->dtype;
    tensor.dtype = parse_dtype(type->dtype);
    tensor.offset = integer(args[1], "a tensor's offset");
    tensor.sizes = integers(args[2], "sizes");
    tensor.strides = integers(args[3], "strides");
    if (tensor.sizes.size() != tensor.strides.size())
      throw wrong("a tensor of {} sizes and {} strides", tensor.sizes.size(), tensor.strides.size());
    tensors_.push_back(std::move(tensor));
    push(Kind::kTensor, static_cast<int64_t>(tensors_.size() - 1));
  }

  void call() {
    const std::vector<Ref> args = arguments(pop(), "a tuple of arguments");
    const Known& function = known(pop());
    switch (function.call) {
      case Call::kDict:
        if (!args.empty()) throw wrong("a dictionary made from {} arguments", args.size());
        return push(Kind::kDict);
      case Call::kTensor:
        return call_tensor(args, false);
      case Call::kTensorWithDType:
        return call_tensor(args, true);
      case Call::kParameter:
        if (args.empty()) throw wrong("a parameter made from nothing");
        expect(args[0], Kind::kTensor, "a tensor");
        stack_.push_back(args[0]);
        return;
      case Call::kSize:
        if (args.size() != 1) throw wrong("a size made from {} arguments", args.size());
        stack_.push_back(args[0]);
        return;
      default:
        throw wrong("{}.{} is called", function.module, function.name);
    }
  }

  // Attributes: of a dictionary they are notes (_metadata), of anything else they would change what it is.
  void build() {
    pop();
    expect(top(), Kind::kDict, "a dictionary to set attributes of");
  }

  bool step_container(uint8_t opcode) {
    switch (opcode) {
      case '(':
        return push(Kind::kMark), true;
      case '0':
        if (stack_.empty()) throw wrong("it takes a value that is not there");
        return stack_.pop_back(), true;
      case '1':
        return pop_to_mark(), true;
      case '2':
        return stack_.push_back(top()), true;
      case ')':
        return push(Kind::kTuple), true;
      case 't': {
        std::vector<Ref> items = pop_to_mark();
        return push(Value{Kind::kTuple, 0, {}, std::move(items)}), true;
      }
      case 0x85:
        return pop_tuple(1), true;
      case 0x86:
        return pop_tuple(2), true;
      case 0x87:
        return pop_tuple(3), true;
      case ']':
        return push(Kind::kList), true;
      case 'a':
        return append(), true;
      case 'e': {
        const std::vector<Ref> items = pop_to_mark();
        return add_items(Kind::kList, items), true;
      }
      case '}':
        return push(Kind::kDict), true;
      case 's':
        return set_item(), true;
      case 'u': {
        const std::vector<Ref> items = pop_to_mark();
        return add_items(Kind::kDict, items), true;
      }
      default:
        return false;
    }
  }

  bool step_scalar(uint8_t opcode) {
    switch (opcode) {
      case 'N':
      case 0x88:
      case 0x89:
        return push(Kind::kOther), true;
      case 'K':
        return push(Kind::kInt, byte()), true;
      case 'M':
        return push(Kind::kInt, number<uint16_t>()), true;
      case 'J':
        return push(Kind::kInt, number<int32_t>()), true;
      case 0x8a:
        return push_long(byte()), true;
      case 'G':
        return bytes(8), push(Kind::kOther), true;
      case 'X':
        return push_text(bytes(number<uint32_t>())), true;
      case 0x8c:
        return push_text(bytes(byte())), true;
      case 0x8d:
        return push_text(bytes(number<uint64_t>())), true;
      case 'U':
        return push_text(bytes(byte())), true;
      case 'T':
        return push_text(bytes(number<uint32_t>())), true;
      case 'C':
        return bytes(byte()), push(Kind::kOther), true;
      case 'B':
        return bytes(number<uint32_t>()), push(Kind::kOther), true;
      default:
        return false;
    }
  }

  // False at the end.
  bool step(uint8_t opcode) {
    if (step_container(opcode) || step_scalar(opcode)) return true;
    switch (opcode) {
      case 0x80:
        if (const int protocol = byte(); protocol > kNewestProtocol) throw wrong("protocol {}", protocol);
        return true;
      case 0x95:
        return bytes(8), true;  // the length of a frame
      case 'c': {
        const std::string_view module = line(), name = line();
        return push_global(module, name), true;
      }
      case 0x93:
        return push_stack_global(), true;
      case 'Q':
        return push_storage(), true;
      case 'R':
        return call(), true;
      case 'b':
        return build(), true;
      case 'q':
        return remember(byte()), true;
      case 'r':
        return remember(number<uint32_t>()), true;
      case 0x94:
        return remember(memo_.size()), true;
      case 'h':
        return recall(byte()), true;
      case 'j':
        return recall(number<uint32_t>()), true;
      case '.':
        return false;
      default:
        throw refused(fmt::format(
            "its pickle uses the instruction 0x{:02x} at byte {}, which dictionaries of tensors do not need", opcode,
            at_ - 1));
    }
  }

  // Result.
  template <typename Visit>
  void each_item(Ref dict, Visit&& visit) {
    const std::vector<Ref>& items = values_[dict].items;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      if (values_[items[i]].kind == Kind::kText) visit(values_[items[i]].text, items[i + 1]);
    }
  }
  std::vector<PickledTensor> tensors_in(Ref dict) {
    std::vector<PickledTensor> found;
    std::unordered_map<std::string_view, size_t> places;  // of two values under one key the last counts
    each_item(dict, [&](std::string_view name, Ref value) {
      if (values_[value].kind != Kind::kTensor) return;
      PickledTensor tensor = tensors_[static_cast<size_t>(values_[value].number)];
      tensor.name = name;
      const auto [place, is_new] = places.emplace(name, found.size());
      if (is_new) {
        found.push_back(std::move(tensor));
      } else {
        found[place->second] = std::move(tensor);
      }
    });
    return found;
  }
  std::vector<PickledTensor> tensors_of(Ref root) {
    if (values_[root].kind != Kind::kDict)
      throw refused("it holds no dictionary of tensors; save a model's state_dict(), best as safetensors");
    std::vector<PickledTensor> found = tensors_in(root);
    if (!found.empty()) return found;
    std::map<std::string_view, std::vector<PickledTensor>> nested;
    std::unordered_set<Ref> seen;
    each_item(root, [&](std::string_view name, Ref value) {
      if (values_[value].kind != Kind::kDict || nested.size() > 1 || !seen.insert(value).second) return;
      std::vector<PickledTensor> inside = tensors_in(value);
      if (!inside.empty()) nested.emplace(name, std::move(inside));
    });
    if (nested.size() == 1) return std::move(nested.begin()->second);
    throw refused(nested.empty() ? "the dictionary that it holds has no tensors"
                                 : fmt::format("it holds several dictionaries of tensors ({} and {}); save the model's "
                                               "state_dict() alone",
                                               shown(nested.begin()->first), shown(std::next(nested.begin())->first)));
  }

  std::span<const std::byte> pickle_;
  std::string_view source_;
  size_t at_ = 0;
  std::vector<Value> values_;
  std::vector<Ref> stack_;
  std::unordered_map<uint64_t, Ref> memo_;
  std::vector<Storage> storages_;
  std::vector<PickledTensor> tensors_;
};

}  // namespace

std::vector<PickledTensor> read_pickled_tensors(std::span<const std::byte> pickle, std::string_view source) {
  return Unpickler(pickle, source).read();
}

}  // namespace coluber
