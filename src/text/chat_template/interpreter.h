// SPDX-License-Identifier: Apache-2.0
//
// Runs one rendering of a parsed template. An Interpreter is made for one rendering and dies with it; it owns the
// scopes and the objects that templates make (namespaces, macros, loops), the Heap it is given owns the accounts of
// values and must outlive it. One thread. Throws Fault, with the line filled in by `run`.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template/ast.h"
#include "text/chat_template/fault.h"
#include "text/chat_template/value.h"

namespace coluber::jinja {

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<NameId, Value>> variables;
  bool captured = false;  // a macro still needs it

  Value* find(NameId name) {
    for (auto& [id, value] : variables) {
      if (id == name) return &value;
    }
    return nullptr;
  }
  void set(NameId name, Value value) {
    if (Value* slot = find(name)) {
      *slot = std::move(value);
    } else {
      variables.emplace_back(name, std::move(value));
    }
  }
};

struct Namespace : Object {
  std::vector<std::pair<std::string, Value>> attributes;
  std::string_view type_name() const noexcept override { return "jinja2.utils.Namespace"; }
  void append_repr(std::string* out, Heap& heap, int depth) const override;
  Value* find(std::string_view name) {
    for (auto& [word, value] : attributes) {
      if (word == name) return &value;
    }
    return nullptr;
  }
};

struct Macro : Object {
  const Signature* signature = nullptr;
  const Body* body = nullptr;
  Scope* scope = nullptr;
  std::string_view type_name() const noexcept override { return "jinja2.runtime.Macro"; }
  void append_repr(std::string* out, Heap& heap, int depth) const override;
  bool callable() const noexcept override { return true; }
};

// The functions that templates find by name.
struct Builtin : Object {
  explicit Builtin(std::string_view word) : name(word) {}
  std::string_view name;
  std::string_view type_name() const noexcept override { return "function"; }
  bool callable() const noexcept override { return true; }
};

struct BoundMethod : Object {
  Value self;
  std::string name;
  std::string_view type_name() const noexcept override { return "builtin_function_or_method"; }
  void append_repr(std::string* out, Heap& heap, int depth) const override;
  bool callable() const noexcept override { return true; }
};

struct Cycler : Object {
  Values items;
  size_t at = 0;
  std::string_view type_name() const noexcept override { return "jinja2.utils.Cycler"; }
};

struct Joiner : Object {
  Value separator;
  bool used = false;
  std::string_view type_name() const noexcept override { return "jinja2.utils.Joiner"; }
  bool callable() const noexcept override { return true; }
};

// `loop`: reads one element ahead only where it is asked to, as the filter of the loop may depend on what its body
// does.
struct Loop : Object {
  const Stmt* stmt = nullptr;
  Values items;
  size_t next = 0;
  int64_t index0 = -1, depth0 = 0, length = -1;
  bool settled = false;  // the filter has run over all of `items`
  Value current, previous;
  std::optional<Value> ahead;
  std::optional<Values> changed;
  Scope* scope = nullptr;  // around the loop
  std::string_view type_name() const noexcept override { return "jinja2.runtime.LoopContext"; }
  void append_repr(std::string* out, Heap& heap, int depth) const override;
  bool callable() const noexcept override { return true; }
};

class Interpreter {
 public:
  // `clock` is seconds since 1970 in local time, for strftime_now.
  Interpreter(const Program& program, Heap* heap, int64_t clock, int max_depth);
  void define(std::string_view name, Value value);
  Text run();

  // What filters, tests and methods need.
  Heap& heap() noexcept { return *heap_; }
  int64_t clock() const noexcept { return clock_; }
  Value attribute(const Value& object, const Value& name);  // object.name
  Value item(const Value& object, const Value& key);        // object[key]
  Value call(const Value& callee, Args args);
  // Python's own attributes only, no entries of dictionaries.
  Value object_attribute(const Value& object, std::string_view name, bool* found);
  void capture(Scope* scope);

  template <typename T, typename... A>
  T* own(A&&... args) {
    heap_->hold(static_cast<int64_t>(sizeof(T)) + 32);
    auto made = std::make_unique<T>(std::forward<A>(args)...);
    T* raw = made.get();
    objects_.push_back(std::move(made));
    return raw;
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class ScopeGuard;
  class DepthCount;
  class SinkGuard;

  // interpreter.cc
  Flow run_body(const Body& body);
  Flow run_statement(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt);
  void run_loop(const Stmt& stmt, const Value& iterable, int64_t depth0);
  bool loop_next(Loop* loop);
  bool loop_pull(Loop* loop, Value* out);
  bool loop_peek(Loop* loop);
  void run_print(const Stmt& stmt);
  void run_set(const Stmt& stmt);
  Flow run_captured(const Stmt& stmt, Text* out);
  void run_macro(const Stmt& stmt);
  void run_call_block(const Stmt& stmt);
  Flow run_with(const Stmt& stmt);
  void assign(const Target& target, const Value& value, Scope* scope);
  Value call_macro(const Macro& macro, Args args);
  void bind_rest(const Signature& signature, Args* args, Value caller);
  Value loop_attribute(Loop* loop, std::string_view name, bool* found);
  Value call_loop_method(Loop* loop, std::string_view name, Args& args);
  Value call_bound(const BoundMethod& method, Args& args);
  void print(const Value& value);
  Scope* new_scope(Scope* parent);
  void free_scope(Scope* scope);

  // evaluator.cc
  Value eval(const Expr& expr);
  Value eval_inner(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_conditional(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_subscript(const Expr& expr);
  Value eval_slice(const Value& object, const Expr& slice);
  Value eval_call(const Expr& expr, const Value* caller = nullptr);
  Value eval_filter(const Expr& expr, const Value* operand = nullptr);
  Value eval_compare(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Args eval_arguments(const CallArguments& arguments);

  const Program& program_;
  Heap* heap_;
  int64_t clock_;
  int max_depth_;
  int depth_ = 0;
  int line_ = 0;
  Flow pending_ = Flow::kNext;  // what the else of a loop asks of the loop around it
  Scope* scope_ = nullptr;
  Scope* root_ = nullptr;
  Text* out_ = nullptr;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Scope*> free_scopes_;
  std::vector<std::unique_ptr<Object>> objects_;
};

class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter* in, Scope* parent) : in_(in), outer_(in->scope_), scope_(in->new_scope(parent)) {
    in_->scope_ = scope_;
  }
  explicit ScopeGuard(Interpreter* in) : ScopeGuard(in, in->scope_) {}
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  ~ScopeGuard() {
    in_->scope_ = outer_;
    in_->free_scope(scope_);
  }

 private:
  Interpreter* in_;
  Scope* outer_;
  Scope* scope_;
};

class Interpreter::DepthCount {
 public:
  explicit DepthCount(Interpreter* in) : in_(in) {
    if (in_->depth_ >= in_->max_depth_) {
      raise(FaultKind::kLimit, "macros, loops and expressions are nested more than {} deep (a recursion without end?)",
            in_->max_depth_);
    }
    ++in_->depth_;
  }
  DepthCount(const DepthCount&) = delete;
  DepthCount& operator=(const DepthCount&) = delete;
  ~DepthCount() { --in_->depth_; }

 private:
  Interpreter* in_;
};

class Interpreter::SinkGuard {
 public:
  SinkGuard(Interpreter* in, Text* out) : in_(in), outer_(in->out_) { in_->out_ = out; }
  SinkGuard(const SinkGuard&) = delete;
  SinkGuard& operator=(const SinkGuard&) = delete;
  ~SinkGuard() { in_->out_ = outer_; }

 private:
  Interpreter* in_;
  Text* outer_;
};

}  // namespace coluber::jinja
