// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "text/chat_template/filters.h"
#include "text/chat_template/interpreter.h"
#include "text/chat_template/methods.h"
#include "text/chat_template/operators.h"
#include "text/chat_template/python.h"

namespace coluber::jinja {

Value Interpreter::eval(const Expr& expr) {
  DepthCount depth(this);
  heap_->step();
  return eval_inner(expr);
}

Value Interpreter::eval_inner(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return eval_name(expr);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      Values items;
      items.reserve(expr.items.size());
      for (const ExprPtr& item : expr.items) items.push_back(eval(*item));
      return expr.kind == ExprKind::kList ? heap_->list(std::move(items)) : heap_->tuple(std::move(items));
    }
    case ExprKind::kDict:
      return eval_dict(expr);
    case ExprKind::kAttribute: {
      const Value object = eval(*expr.a);
      line_ = expr.line;
      return attribute(object, expr.constant);
    }
    case ExprKind::kSubscript:
      return eval_subscript(expr);
    case ExprKind::kCall:
      return eval_call(expr);
    case ExprKind::kFilter:
      return eval_filter(expr);
    case ExprKind::kTest: {
      const Value value = eval(*expr.a);
      const Args args = eval_arguments(expr.arguments);
      line_ = expr.line;
      return Value(call_test(*this, expr.word, value, args));
    }
    case ExprKind::kNot:
      return Value(!truthy(eval(*expr.a)));
    case ExprKind::kNegate:
      return negate(eval(*expr.a));
    case ExprKind::kPlus:
      return plus(eval(*expr.a));
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = eval(*expr.a);
      return truthy(left) == (expr.kind == ExprKind::kAnd) ? eval(*expr.b) : left;
    }
    case ExprKind::kConditional:
      return eval_conditional(expr);
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kBinary: {
      const Value left = eval(*expr.a);
      const Value right = eval(*expr.b);
      line_ = expr.line;
      return binary(*heap_, expr.op, left, right);
    }
    case ExprKind::kSlice:
      break;
  }
  raise_type("a slice stands where a value is expected");
}

Value Interpreter::eval_conditional(const Expr& expr) {
  if (truthy(eval(*expr.a))) return eval(*expr.b);
  if (expr.c != nullptr) return eval(*expr.c);
  return make_undefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.", expr.line));
}

Value Interpreter::eval_name(const Expr& expr) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (const Value* value = scope->find(expr.name)) return *value;
  }
  return make_undefined(fmt::format("'{}' is undefined", program_.names.words[static_cast<size_t>(expr.name)]));
}

Value Interpreter::eval_dict(const Expr& expr) {
  Dict dict;
  for (size_t i = 0; i + 1 < expr.items.size(); i += 2) {
    Value key = eval(*expr.items[i]);
    dict.set(std::move(key), eval(*expr.items[i + 1]));
  }
  return heap_->dict(std::move(dict));
}

Value Interpreter::eval_subscript(const Expr& expr) {
  const Value object = eval(*expr.a);
  if (expr.b->kind == ExprKind::kSlice) {
    Value result = eval_slice(object, *expr.b);
    return result;
  }
  const Value key = eval(*expr.b);
  line_ = expr.line;
  return item(object, key);
}

Value Interpreter::eval_slice(const Value& object, const Expr& slice_expr) {
  const auto bound = [this](const ExprPtr& expr) -> std::optional<int64_t> {
    if (expr == nullptr) return std::nullopt;
    const Value value = eval(*expr);
    if (value.is_none()) return std::nullopt;
    if (!value.is_integral()) raise_type("slice indices must be integers or None or have an __index__ method");
    return value.integer();
  };
  const auto start = bound(slice_expr.a), stop = bound(slice_expr.b), step = bound(slice_expr.c);
  line_ = slice_expr.line;
  if (object.is_undefined()) raise(FaultKind::kUndefined, "{}", object.undefined_message());
  if (object.is_dict()) raise_type("unhashable type: 'slice'");
  if (!object.is_string() && !object.is_list() && !object.is_tuple() &&
      !(object.is_view() && object.view().is_range())) {
    raise_type("'{}' object is not subscriptable", type_name(object));
  }
  return slice(*heap_, object, start, stop, step);
}

Args Interpreter::eval_arguments(const CallArguments& arguments) {
  Args args;
  args.positional.reserve(arguments.positional.size());
  for (const ExprPtr& expr : arguments.positional) args.positional.push_back(eval(*expr));
  for (const auto& [word, expr] : arguments.keyword) args.keyword.emplace_back(word, eval(*expr));
  if (arguments.star != nullptr) {
    for (Value& value : iterate(eval(*arguments.star), *heap_)) args.positional.push_back(std::move(value));
  }
  if (arguments.star_star != nullptr) {
    const Value value = eval(*arguments.star_star);
    if (!value.is_dict()) raise_type("argument after ** must be a mapping, not {}", type_name(value));
    for (const auto& [key, item] : value.dict().entries) {
      if (!key.is_string()) raise_type("keywords must be strings");
      for (const auto& [word, given] : args.keyword) {
        if (word == key.str()) raise_type("got multiple values for keyword argument '{}'", word);
      }
      args.keyword.emplace_back(key.str(), item);
    }
  }
  return args;
}

Value Interpreter::eval_call(const Expr& expr, const Value* caller) {
  const Expr& callee = *expr.a;
  if (callee.kind == ExprKind::kAttribute) {
    // The common case, a method of a plain value, needs no bound method in between.
    const Value self = eval(*callee.a);
    if (!self.is_object() && has_method(self, callee.word)) {
      Args args = eval_arguments(expr.arguments);
      line_ = expr.line;
      if (caller != nullptr) args.keyword.emplace_back("caller", *caller);
      return call_method(*this, self, callee.word, args);
    }
    line_ = callee.line;
    const Value function = attribute(self, callee.constant);
    Args args = eval_arguments(expr.arguments);
    if (caller != nullptr) args.keyword.emplace_back("caller", *caller);
    line_ = expr.line;
    return call(function, std::move(args));
  }
  const Value function = eval(callee);
  Args args = eval_arguments(expr.arguments);
  if (caller != nullptr) args.keyword.emplace_back("caller", *caller);
  line_ = expr.line;
  return call(function, std::move(args));
}

Value Interpreter::eval_filter(const Expr& expr, const Value* operand) {
  DepthCount depth(this);
  Value value;
  if (expr.a != nullptr) {
    value = operand != nullptr && expr.a->kind == ExprKind::kFilter ? eval_filter(*expr.a, operand) : eval(*expr.a);
  } else {
    value = *operand;
  }
  const Args args = eval_arguments(expr.arguments);
  line_ = expr.line;
  return call_filter(*this, expr.word, value, args);
}

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.a);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.items[i]);
    line_ = expr.line;
    if (!compare(expr.ops[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::eval_concat(const Expr& expr) {
  Text out;
  for (const ExprPtr& part : expr.items) append_str(&out, eval(*part), *heap_);
  return heap_->text(std::move(out));
}

}  // namespace coluber::jinja
