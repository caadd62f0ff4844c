// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/interpreter.h"

#include <algorithm>

#include "text/chat_template/filters.h"
#include "text/chat_template/globals.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

Interpreter::Interpreter(const Program& program, Heap* heap, int64_t clock, int max_depth)
    : program_(program), heap_(heap), clock_(clock), max_depth_(max_depth) {
  Scope* globals = new_scope(nullptr);
  root_ = scope_ = new_scope(globals);
  for (const std::string_view word : global_names()) {
    const auto found = program_.names.ids.find(std::string(word));
    if (found != program_.names.ids.end()) globals->set(found->second, Value(own<Builtin>(word)));
  }
}

void Interpreter::define(std::string_view name, Value value) {
  const auto found = program_.names.ids.find(std::string(name));
  if (found != program_.names.ids.end()) root_->set(found->second, std::move(value));
}

Text Interpreter::run() {
  Text out;
  SinkGuard sink(this, &out);
  try {
    // Variables of the template itself lie above those of the caller, as a set of the same name hides them.
    ScopeGuard scope(this);
    run_body(program_.body);
  } catch (Fault& fault) {
    if (fault.line == 0) fault.line = line_;
    throw;
  }
  return out;
}

Scope* Interpreter::new_scope(Scope* parent) {
  if (free_scopes_.empty()) {
    heap_->hold(static_cast<int64_t>(sizeof(Scope)) + 128);
    scopes_.push_back(std::make_unique<Scope>());
    free_scopes_.push_back(scopes_.back().get());
  }
  Scope* scope = free_scopes_.back();
  free_scopes_.pop_back();
  scope->parent = parent;
  return scope;
}

void Interpreter::free_scope(Scope* scope) {
  if (scope->captured) return;
  scope->variables.clear();
  free_scopes_.push_back(scope);
}

void Interpreter::capture(Scope* scope) {
  for (; scope != nullptr && !scope->captured; scope = scope->parent) scope->captured = true;
}

Interpreter::Flow Interpreter::run_body(const Body& body) {
  for (const auto& stmt : body) {
    const Flow flow = run_statement(*stmt);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_statement(const Stmt& stmt) {
  DepthCount depth(this);
  heap_->step();
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText:
      print(stmt.text);
      return Flow::kNext;
    case StmtKind::kPrint:
      run_print(stmt);
      return Flow::kNext;
    case StmtKind::kSet:
      run_set(stmt);
      return Flow::kNext;
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock: {
      Text text;
      const Flow flow = run_captured(stmt, &text);
      if (flow != Flow::kNext) return flow;
      Value value = heap_->text(std::move(text));
      if (!stmt.exprs.empty() && stmt.exprs[0] != nullptr) value = eval_filter(*stmt.exprs[0], &value);
      stmt.kind == StmtKind::kSetBlock ? assign(stmt.targets[0], value, scope_) : print(value);
      return Flow::kNext;
    }
    case StmtKind::kIf:
      return run_if(stmt);
    case StmtKind::kFor:
      return run_for(stmt);
    case StmtKind::kMacro:
      run_macro(stmt);
      return Flow::kNext;
    case StmtKind::kCallBlock:
      run_call_block(stmt);
      return Flow::kNext;
    case StmtKind::kWith:
      return run_with(stmt);
    case StmtKind::kScope: {
      ScopeGuard scope(this);
      return run_body(stmt.bodies[0]);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::print(const Value& value) {
  append_str(out_, value, *heap_);
  heap_->check_text(static_cast<int64_t>(out_->bytes.size()));
}

void Interpreter::run_print(const Stmt& stmt) {
  for (const ExprPtr& expr : stmt.exprs) {
    const Value value = eval(*expr);
    line_ = stmt.line;
    print(value);
  }
}

void Interpreter::run_set(const Stmt& stmt) {
  const Value value = eval(*stmt.exprs[0]);
  line_ = stmt.line;
  assign(stmt.targets[0], value, scope_);
}

void Interpreter::assign(const Target& target, const Value& value, Scope* scope) {
  if (target.is_tuple) {
    if (!is_iterable(value)) raise_type("cannot unpack non-iterable {} object", type_name(value));
    const Values items = iterate(value, *heap_);
    const size_t wanted = target.items.size();
    if (items.size() > wanted) raise_type("too many values to unpack (expected {})", wanted);
    if (items.size() < wanted) raise_type("not enough values to unpack (expected {}, got {})", wanted, items.size());
    for (size_t i = 0; i < wanted; ++i) assign(target.items[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) return scope->set(target.name, value);
  Expr name;
  name.kind = ExprKind::kName;
  name.name = target.name;
  auto* space = eval_name(name).object_as<Namespace>();
  if (space == nullptr) {
    raise_type("cannot assign attribute '{}' on '{}', which is no namespace", target.attribute,
               program_.names.words[static_cast<size_t>(target.name)]);
  }
  if (Value* slot = space->find(target.attribute)) {
    *slot = value;
  } else {
    heap_->hold(64);
    space->attributes.emplace_back(target.attribute, value);
  }
}

Interpreter::Flow Interpreter::run_captured(const Stmt& stmt, Text* out) {
  ScopeGuard scope(this);
  SinkGuard sink(this, out);
  return run_body(stmt.bodies[0]);
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt) {
  for (size_t i = 0; i < stmt.exprs.size(); ++i) {
    line_ = stmt.exprs[i]->line;
    if (truthy(eval(*stmt.exprs[i]))) return run_body(stmt.bodies[i]);
  }
  return stmt.bodies.size() > stmt.exprs.size() ? run_body(stmt.bodies.back()) : Flow::kNext;
}

Interpreter::Flow Interpreter::run_with(const Stmt& stmt) {
  Values values;
  for (const ExprPtr& expr : stmt.exprs) values.push_back(eval(*expr));
  ScopeGuard scope(this);
  for (size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], values[i], scope_);
  return run_body(stmt.bodies[0]);
}

// One element that the loop's filter lets through.
bool Interpreter::loop_pull(Loop* loop, Value* out) {
  const Expr* test = loop->settled ? nullptr : loop->stmt->exprs[1].get();
  while (loop->next < loop->items.size()) {
    const Value& candidate = loop->items[loop->next++];
    if (test != nullptr) {
      ScopeGuard scope(this, loop->scope);
      assign(loop->stmt->targets[0], candidate, scope_);
      if (!truthy(eval(*test))) continue;
    }
    *out = candidate;
    return true;
  }
  return false;
}

bool Interpreter::loop_peek(Loop* loop) {
  if (loop->ahead.has_value()) return true;
  Value value;
  if (!loop_pull(loop, &value)) return false;
  loop->ahead = std::move(value);
  return true;
}

bool Interpreter::loop_next(Loop* loop) {
  Value value;
  if (loop->ahead.has_value()) {
    value = std::move(*loop->ahead);
    loop->ahead.reset();
  } else if (!loop_pull(loop, &value)) {
    return false;
  }
  ++loop->index0;
  loop->previous = std::exchange(loop->current, std::move(value));
  return true;
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt) {
  const Value iterable = eval(*stmt.exprs[0]);
  line_ = stmt.line;
  run_loop(stmt, iterable, 0);
  return pending_ == Flow::kNext ? Flow::kNext : std::exchange(pending_, Flow::kNext);
}

void Interpreter::run_loop(const Stmt& stmt, const Value& iterable, int64_t depth0) {
  Loop* loop = own<Loop>();
  loop->stmt = &stmt;
  loop->items = iterate(iterable, *heap_);
  loop->depth0 = depth0;
  loop->scope = scope_;
  const Charge charge(heap_, static_cast<int64_t>(loop->items.size() * sizeof(Value)));
  while (loop_next(loop)) {
    heap_->step();
    ScopeGuard scope(this);
    assign(stmt.targets[0], loop->current, scope_);
    scope_->set(program_.loop, Value(loop));
    if (run_body(stmt.bodies[0]) == Flow::kBreak) break;
  }
  const bool none = loop->index0 < 0;
  loop->items = {};
  loop->current = loop->previous = Value();
  // The else of a loop is outside of it: what ends a loop there ends the one around.
  if (none && stmt.bodies.size() > 1) {
    ScopeGuard scope(this);
    pending_ = run_body(stmt.bodies[1]);
  }
}

void Interpreter::run_macro(const Stmt& stmt) {
  Macro* macro = own<Macro>();
  macro->signature = &stmt.signature;
  macro->body = &stmt.bodies[0];
  macro->scope = scope_;
  capture(scope_);
  assign(stmt.targets[0], Value(macro), scope_);
}

void Interpreter::run_call_block(const Stmt& stmt) {
  Macro* macro = own<Macro>();
  macro->signature = &stmt.signature;
  macro->body = &stmt.bodies[0];
  macro->scope = scope_;
  capture(scope_);
  const Value caller{static_cast<Object*>(macro)};
  const Value value = eval_call(*stmt.exprs[0], &caller);
  line_ = stmt.line;
  print(value);
}

// What a macro's body uses without having declared it.
void Interpreter::bind_rest(const Signature& signature, Args* args, Value caller) {
  const size_t count = std::min(signature.parameters.size(), args->positional.size());
  if (signature.uses_caller && scope_->find(program_.caller) == nullptr)
    scope_->set(program_.caller, std::move(caller));
  if (signature.uses_varargs) {
    Values rest(args->positional.begin() + static_cast<std::ptrdiff_t>(count), args->positional.end());
    scope_->set(program_.varargs, heap_->tuple(std::move(rest)));
  }
  if (signature.uses_kwargs) {
    Dict rest;
    for (auto& [word, value] : args->keyword) rest.set(constant_string(word), std::move(value));
    scope_->set(program_.kwargs, heap_->dict(std::move(rest)));
  }
}

Value Interpreter::call_macro(const Macro& macro, Args args) {
  const Signature& signature = *macro.signature;
  const size_t count = signature.parameters.size();
  std::vector<std::optional<Value>> bound(count);
  bool found_caller = false;
  for (size_t i = 0; i < count; ++i) {
    if (i < args.positional.size()) {
      bound[i] = args.positional[i];
      continue;
    }
    const auto word = std::find_if(args.keyword.begin(), args.keyword.end(),
                                   [&](const auto& entry) { return entry.first == signature.parameters[i].word; });
    if (word == args.keyword.end()) continue;
    found_caller = found_caller || word->first == "caller";
    bound[i] = std::move(word->second);
    args.keyword.erase(word);
  }
  Value caller = make_undefined("No caller defined");
  if (signature.uses_caller && !found_caller) {
    const auto word = std::find_if(args.keyword.begin(), args.keyword.end(),
                                   [](const auto& entry) { return entry.first == "caller"; });
    if (word != args.keyword.end()) {
      caller = std::move(word->second);
      args.keyword.erase(word);
    }
  }
  if (!signature.uses_kwargs && !args.keyword.empty()) {
    raise_type("macro '{}' takes no keyword argument '{}'", signature.name, args.keyword[0].first);
  }
  if (!signature.uses_varargs && args.positional.size() > count) {
    raise_type("macro '{}' takes not more than {} argument(s)", signature.name, count);
  }

  DepthCount depth(this);
  const int line = line_;
  ScopeGuard scope(this, macro.scope);
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = signature.parameters[i];
    if (!bound[i].has_value()) {
      bound[i] = parameter.fallback != nullptr
                     ? eval(*parameter.fallback)
                     : make_undefined(fmt::format("parameter '{}' was not provided", parameter.word));
    }
    scope_->set(parameter.name, *bound[i]);
  }
  bind_rest(signature, &args, std::move(caller));
  Text out;
  SinkGuard sink(this, &out);
  run_body(*macro.body);
  line_ = line;
  return heap_->text(std::move(out));
}

}  // namespace coluber::jinja
