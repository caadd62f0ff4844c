// SPDX-License-Identifier: Apache-2.0
//
// Attributes, subscripts and calls of values: what `x.name`, `x[key]` and `x(...)` mean in the sandbox.
#include <algorithm>

#include "text/chat_template/globals.h"
#include "text/chat_template/interpreter.h"
#include "text/chat_template/methods.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

void Namespace::append_repr(std::string* out, Heap& heap, int depth) const {
  *out += "<Namespace {";
  for (size_t i = 0; i < attributes.size(); ++i) {
    *out += (i > 0 ? ", " : "") + string_repr(attributes[i].first) + ": ";
    jinja::append_repr(out, attributes[i].second, heap, depth + 1);
  }
  *out += "}>";
}

void Loop::append_repr(std::string* out, Heap&, int) const {
  // Python would count a filtered loop by running it to its end; the number of elements is near enough for a debug
  // print.
  *out += fmt::format("<LoopContext {}/{}>", index0 + 1, length < 0 ? static_cast<int64_t>(items.size()) : length);
}

void Macro::append_repr(std::string* out, Heap&, int) const { *out += "<Macro " + string_repr(signature->name) + ">"; }

void BoundMethod::append_repr(std::string* out, Heap&, int) const {
  *out += fmt::format("<built-in method {} of {} object>", name, jinja::type_name(self));
}

namespace {

[[noreturn]] void undefined_used(const Value& value) { raise(FaultKind::kUndefined, "{}", value.undefined_message()); }

Value no_attribute(const Value& object, std::string_view name) {
  return make_undefined(fmt::format("'{}' has no attribute '{}'", object_repr(object), name));
}

// Python's object[key]; false where Python raises TypeError or LookupError.
bool subscript(const Value& object, const Value& key, Heap& heap, Value* out) {
  const auto in_range = [&](const Values& items) {
    if (!key.is_integral()) return false;
    int64_t i = key.integer();
    const int64_t size = static_cast<int64_t>(items.size());
    if (i < 0) i += size;
    if (i < 0 || i >= size) return false;
    *out = items[static_cast<size_t>(i)];
    return true;
  };
  switch (object.kind()) {
    case Kind::kUndefined:
      undefined_used(object);
    case Kind::kList:
    case Kind::kTuple:
      return in_range(object.items());
    case Kind::kView:
      return object.view().is_range() && in_range(object.view().items);
    case Kind::kDict: {
      if (key.is_list() || key.is_dict()) return false;
      const Value* found = key.is_string() ? object.dict().find(std::string_view(key.str())) : object.dict().find(key);
      if (found == nullptr) return false;
      *out = *found;
      return true;
    }
    case Kind::kString: {
      if (!key.is_integral()) return false;
      int64_t i = key.integer();
      const int64_t size = char_count(object.str());
      heap.step(size / 64);
      if (i < 0) i += size;
      if (i < 0 || i >= size) return false;
      const size_t at = char_offset(object.str(), i);
      *out = heap.part(object.text(), at, at + char_size(object.str(), at));
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

Value Interpreter::attribute(const Value& object, const Value& name) {
  const std::string& word = name.str();
  if (object.is_undefined()) undefined_used(object);
  bool found = false;
  Value value = object_attribute(object, word, &found);
  if (found) return value;
  if (object.is_dict()) {
    const Value* entry = object.dict().find(std::string_view(word));
    if (entry != nullptr) return *entry;
  }
  return no_attribute(object, word);
}

Value Interpreter::item(const Value& object, const Value& key) {
  Value value;
  if (subscript(object, key, *heap_, &value)) return value;
  if (key.is_string()) {
    bool found = false;
    value = object_attribute(object, key.str(), &found);
    return found ? value : no_attribute(object, key.str());
  }
  if (key.is_undefined() && object.is_dict())
    return make_undefined(fmt::format("{} has no element Undefined", object_repr(object)));
  return make_undefined(fmt::format("{} has no element {}", object_repr(object), to_repr(key, *heap_)));
}

Value Interpreter::object_attribute(const Value& object, std::string_view name, bool* found) {
  *found = true;
  if (auto* space = object.object_as<Namespace>()) {
    if (const Value* value = space->find(name)) return *value;
  } else if (auto* loop = object.object_as<Loop>()) {
    const Value value = loop_attribute(loop, name, found);
    if (*found) return value;
    *found = true;
  } else if (auto* macro = object.object_as<Macro>()) {
    const Signature& signature = *macro->signature;
    if (name == "name") return heap_->string(signature.name);
    if (name == "catch_kwargs") return Value(signature.uses_kwargs);
    if (name == "catch_varargs") return Value(signature.uses_varargs);
    if (name == "caller") return Value(signature.uses_caller);
    if (name == "arguments") {
      Values words;
      for (const Parameter& parameter : signature.parameters) words.push_back(heap_->string(parameter.word));
      return heap_->tuple(std::move(words));
    }
  } else if (auto* cycler = object.object_as<Cycler>(); cycler != nullptr && name == "current") {
    return cycler->items[cycler->at];
  }
  if (object.is_group() && (name == "grouper" || name == "list")) return object.items()[name == "list" ? 1 : 0];
  if (changes_object(object, name)) return make_undefined(unsafe_message(object, name));
  if (has_method(object, name)) {
    BoundMethod* method = own<BoundMethod>();
    method->self = object;
    method->name = name;
    return Value(method);
  }
  *found = false;
  return Value();
}

Value Interpreter::loop_attribute(Loop* loop, std::string_view name, bool* found) {
  *found = true;
  if (name == "index") return Value(loop->index0 + 1);
  if (name == "index0") return Value(loop->index0);
  if (name == "first") return Value(loop->index0 == 0);
  if (name == "last") return Value(!loop_peek(loop));
  if (name == "depth") return Value(loop->depth0 + 1);
  if (name == "depth0") return Value(loop->depth0);
  if (name == "previtem") return loop->index0 <= 0 ? make_undefined("there is no previous item") : loop->previous;
  if (name == "nextitem") return loop_peek(loop) ? *loop->ahead : make_undefined("there is no next item");
  if (name == "length" || name == "revindex" || name == "revindex0") {
    if (loop->length < 0) {
      const bool filtered = loop->stmt->exprs[1] != nullptr;
      if (filtered) {
        // What remains is filtered once, now: as many pulls as it takes, put back behind the one that was read ahead.
        Values rest;
        Value value;
        if (loop->ahead.has_value()) rest.push_back(std::move(*loop->ahead));
        loop->ahead.reset();
        while (loop_pull(loop, &value)) rest.push_back(value);
        loop->length = loop->index0 + 1 + static_cast<int64_t>(rest.size());
        loop->items = std::move(rest);
        loop->next = 0;
        loop->settled = true;
      } else {
        loop->length = static_cast<int64_t>(loop->items.size());
      }
    }
    if (name == "length") return Value(loop->length);
    return Value(loop->length - loop->index0 - (name == "revindex" ? 0 : 1));
  }
  *found = false;
  return Value();
}

Value Interpreter::call_loop_method(Loop* loop, std::string_view name, Args& args) {
  if (name == "cycle") {
    if (args.positional.empty()) raise_type("no items for cycling given");
    return args.positional[static_cast<size_t>(loop->index0) % args.positional.size()];
  }
  // "changed"
  const bool same = loop->changed.has_value() && loop->changed->size() == args.positional.size() &&
                    std::equal(args.positional.begin(), args.positional.end(), loop->changed->begin(),
                               [](const Value& a, const Value& b) { return equal(a, b); });
  loop->changed = args.positional;
  return Value(!same);
}

Value Interpreter::call_bound(const BoundMethod& method, Args& args) {
  if (auto* loop = method.self.object_as<Loop>()) return call_loop_method(loop, method.name, args);
  if (auto* cycler = method.self.object_as<Cycler>()) {
    if (method.name == "reset") {
      cycler->at = 0;
      return Value();
    }
    const Value value = cycler->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->items.size();
    return value;
  }
  return call_method(*this, method.self, method.name, args);
}

Value Interpreter::call(const Value& callee, Args args) {
  heap_->step();
  if (callee.is_undefined()) undefined_used(callee);
  if (auto* macro = callee.object_as<Macro>()) return call_macro(*macro, std::move(args));
  if (auto* builtin = callee.object_as<Builtin>()) return call_global(*this, builtin->name, args);
  if (auto* method = callee.object_as<BoundMethod>()) return call_bound(*method, args);
  if (auto* joiner = callee.object_as<Joiner>()) {
    return std::exchange(joiner->used, true) ? joiner->separator : heap_->string({});
  }
  if (auto* loop = callee.object_as<Loop>()) {
    if (!loop->stmt->recursive) raise_type("The loop must have the 'recursive' marker to be called recursively.");
    if (args.positional.size() != 1) raise_type("loop() takes exactly one argument ({} given)", args.positional.size());
    DepthCount depth(this);
    Text out;
    {
      SinkGuard sink(this, &out);
      Scope* const outer = std::exchange(scope_, loop->scope);
      try {
        run_loop(*loop->stmt, args.positional[0], loop->depth0 + 1);
      } catch (...) {
        scope_ = outer;
        throw;
      }
      scope_ = outer;
    }
    return heap_->text(std::move(out));
  }
  raise_type("'{}' object is not callable", type_name(callee));
}

}  // namespace coluber::jinja
