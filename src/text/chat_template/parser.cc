// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/parser.h"

#include <algorithm>
#include <array>

#include "text/chat_template/filters.h"

namespace coluber::jinja {

Token Parser::next() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::skip(std::string_view op) {
  if (!current().is(op)) return false;
  next();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

void Parser::error(const std::string& message, int line) const {
  throw Fault{FaultKind::kSyntax, line > 0 ? line : current().line, message};
}

void Parser::expect(std::string_view op) {
  if (!skip(op)) error(fmt::format("expected '{}', found {}", op, describe(current())));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) error(fmt::format("expected '{}', found {}", name, describe(current())));
}

std::string Parser::expect_word() {
  if (current().kind != TokenKind::kName) error(fmt::format("expected a name, found {}", describe(current())));
  return next().text;
}

void Parser::expect_kind(TokenKind kind) {
  if (current().kind != kind) {
    Token wanted;
    wanted.kind = kind;
    error(fmt::format("expected {}, found {}", describe(wanted), describe(current())));
  }
  next();
}

ExprPtr Parser::make(ExprKind kind, ExprPtr a, ExprPtr b, ExprPtr c) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = tokens_[at_ > 0 ? at_ - 1 : 0].line;
  expr->a = std::move(a);
  expr->b = std::move(b);
  expr->c = std::move(c);
  return close(std::move(expr));
}

// Works out the depth once the operands are in.
ExprPtr Parser::close(ExprPtr expr) {
  int depth = 0;
  const auto look = [&depth](const ExprPtr& child) {
    if (child != nullptr) depth = std::max(depth, child->depth);
  };
  look(expr->a), look(expr->b), look(expr->c);
  for (const ExprPtr& item : expr->items) look(item);
  for (const ExprPtr& item : expr->arguments.positional) look(item);
  for (const auto& [name, item] : expr->arguments.keyword) look(item);
  look(expr->arguments.star), look(expr->arguments.star_star);
  expr->depth = depth + 1;
  if (expr->depth > kMaxTreeDepth) {
    throw Fault{FaultKind::kLimit, expr->line,
                fmt::format("an expression chains more than {} operations", kMaxTreeDepth)};
  }
  return expr;
}

ExprPtr Parser::parse_expression(bool with_conditional) {
  DepthGuard guard(this);
  if (!with_conditional) return parse_or();
  const bool outer = may_be_skipped_;
  ExprPtr expr = parse_or();
  while (skip_name("if")) {
    may_be_skipped_ = true;
    ExprPtr test = parse_or();
    ExprPtr otherwise;
    if (skip_name("else")) otherwise = parse_expression();
    expr = make(ExprKind::kConditional, std::move(test), std::move(expr), std::move(otherwise));
  }
  may_be_skipped_ = outer;
  return expr;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (skip_name("or")) left = make(ExprKind::kOr, std::move(left), parse_and());
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (skip_name("and")) left = make(ExprKind::kAnd, std::move(left), parse_not());
  return left;
}

ExprPtr Parser::parse_not() {
  DepthGuard guard(this);
  if (skip_name("not")) return make(ExprKind::kNot, parse_not());
  return parse_compare();
}

ExprPtr Parser::parse_compare() {
  static constexpr std::array<std::pair<std::string_view, Op>, 6> kCompare = {
      {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt}, {"<=", Op::kLe}, {">", Op::kGt}, {">=", Op::kGe}}};
  ExprPtr left = parse_sum();
  std::vector<Op> ops;
  std::vector<ExprPtr> right;
  for (;;) {
    const auto* found =
        std::find_if(kCompare.begin(), kCompare.end(), [this](const auto& entry) { return current().is(entry.first); });
    if (found != kCompare.end()) {
      next();
      ops.push_back(found->second);
    } else if (skip_name("in")) {
      ops.push_back(Op::kIn);
    } else if (current().is_name("not") && ahead().is_name("in")) {
      next(), next();
      ops.push_back(Op::kNotIn);
    } else {
      break;
    }
    right.push_back(parse_sum());
  }
  if (ops.empty()) return left;
  ExprPtr expr = make(ExprKind::kCompare, std::move(left));
  expr->ops = std::move(ops);
  expr->items = std::move(right);
  return close(std::move(expr));
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (current().is("+") || current().is("-")) {
    const Op op = next().text == "+" ? Op::kAdd : Op::kSub;
    left = make(ExprKind::kBinary, std::move(left), parse_concat());
    left->op = op;
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  ExprPtr first = parse_product();
  if (!current().is("~")) return first;
  ExprPtr expr = make(ExprKind::kConcat);
  expr->items.push_back(std::move(first));
  while (skip("~")) expr->items.push_back(parse_product());
  return close(std::move(expr));
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  for (;;) {
    Op op;
    if (current().is("*")) {
      op = Op::kMul;
    } else if (current().is("/")) {
      op = Op::kDiv;
    } else if (current().is("//")) {
      op = Op::kFloorDiv;
    } else if (current().is("%")) {
      op = Op::kMod;
    } else {
      return left;
    }
    next();
    left = make(ExprKind::kBinary, std::move(left), parse_power());
    left->op = op;
  }
}

ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary();
  while (skip("**")) {
    left = make(ExprKind::kBinary, std::move(left), parse_unary());
    left->op = Op::kPow;
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filter) {
  DepthGuard guard(this);
  ExprPtr expr;
  if (skip("-")) {
    expr = make(ExprKind::kNegate, parse_unary(false));
  } else if (skip("+")) {
    expr = make(ExprKind::kPlus, parse_unary(false));
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filter ? parse_filters(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::parse_name(const Token& token) {
  const std::string& word = token.text;
  if (word == "true" || word == "True" || word == "false" || word == "False") {
    ExprPtr expr = make(ExprKind::kConstant);
    expr->constant = Value(word == "true" || word == "True");
    return expr;
  }
  if (word == "none" || word == "None") return make(ExprKind::kConstant);
  ExprPtr expr = make(ExprKind::kName);
  expr->name = program_->names.intern(word);
  if (word == "caller" || word == "varargs" || word == "kwargs") {
    for (MacroUse& use : macro_uses_)
      (word == "caller" ? use.caller : word == "varargs" ? use.varargs : use.kwargs) = true;
  }
  return expr;
}

ExprPtr Parser::parse_primary() {
  const Token token = current();
  ExprPtr expr;
  switch (token.kind) {
    case TokenKind::kName:
      next();
      return parse_name(token);
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += next().text;
      expr = make(ExprKind::kConstant);
      expr->constant = constant_string(std::move(text));
      return expr;
    }
    case TokenKind::kInteger:
      next();
      expr = make(ExprKind::kConstant);
      expr->constant = Value(token.integer);
      return expr;
    case TokenKind::kFloat:
      next();
      expr = make(ExprKind::kConstant);
      expr->constant = Value(token.real);
      return expr;
    default:
      break;
  }
  if (skip("(")) {
    expr = parse_tuple(true, true);
    expect(")");
    return expr;
  }
  if (token.is("[")) return parse_list();
  if (token.is("{")) return parse_dict();
  error(fmt::format("unexpected {}", describe(token)));
}

bool Parser::at_tuple_end(std::string_view end_word) const {
  const Token& token = current();
  if (token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd || token.is(")")) return true;
  return !end_word.empty() && token.is_name(end_word);
}

ExprPtr Parser::parse_tuple(bool with_conditional, bool explicit_parentheses, std::string_view end_word) {
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect(",");
    if (at_tuple_end(end_word)) break;
    items.push_back(parse_expression(with_conditional));
    if (!current().is(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!explicit_parentheses) error(fmt::format("expected an expression, found {}", describe(current())));
  }
  ExprPtr expr = make(ExprKind::kTuple);
  expr->items = std::move(items);
  return close(std::move(expr));
}

ExprPtr Parser::parse_list() {
  expect("[");
  ExprPtr expr = make(ExprKind::kList);
  while (!current().is("]")) {
    if (!expr->items.empty()) expect(",");
    if (current().is("]")) break;
    expr->items.push_back(parse_expression());
  }
  expect("]");
  return close(std::move(expr));
}

ExprPtr Parser::parse_dict() {
  expect("{");
  ExprPtr expr = make(ExprKind::kDict);
  while (!current().is("}")) {
    if (!expr->items.empty()) expect(",");
    if (current().is("}")) break;
    expr->items.push_back(parse_expression());
    expect(":");
    expr->items.push_back(parse_expression());
  }
  expect("}");
  return close(std::move(expr));
}

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  for (;;) {
    if (current().is(".") || current().is("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (current().is("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_filters(ExprPtr expr) {
  for (;;) {
    if (current().is("|")) {
      expr = parse_filter(std::move(expr));
    } else if (current().is_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (current().is("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr expr) {
  if (skip(".")) {
    const Token token = next();
    if (token.kind == TokenKind::kName) {
      ExprPtr attribute = make(ExprKind::kAttribute, std::move(expr));
      attribute->word = token.text;
      attribute->constant = constant_string(token.text);
      return attribute;
    }
    if (token.kind != TokenKind::kInteger)
      error(fmt::format("expected a name or a number after '.', found {}", describe(token)), token.line);
    ExprPtr index = make(ExprKind::kConstant);
    index->constant = Value(token.integer);
    return make(ExprKind::kSubscript, std::move(expr), std::move(index));
  }
  expect("[");
  std::vector<ExprPtr> parts;
  while (!current().is("]")) {
    if (!parts.empty()) expect(",");
    parts.push_back(parse_subscript_part());
  }
  expect("]");
  if (parts.empty()) error("expected a subscript between '[' and ']'");
  if (parts.size() == 1) return make(ExprKind::kSubscript, std::move(expr), std::move(parts[0]));
  for (const ExprPtr& part : parts) {
    if (part->kind == ExprKind::kSlice) error("several slices in one subscript are not supported");
  }
  ExprPtr tuple = make(ExprKind::kTuple);
  tuple->items = std::move(parts);
  return make(ExprKind::kSubscript, std::move(expr), close(std::move(tuple)));
}

ExprPtr Parser::parse_subscript_part() {
  ExprPtr start, stop, step;
  if (!current().is(":")) {
    start = parse_expression();
    if (!current().is(":")) return start;
  }
  expect(":");
  if (!current().is(":") && !current().is("]") && !current().is(",")) stop = parse_expression();
  if (skip(":") && !current().is("]") && !current().is(",")) step = parse_expression();
  return make(ExprKind::kSlice, std::move(start), std::move(stop), std::move(step));
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  ExprPtr expr = make(ExprKind::kCall, std::move(callee));
  parse_arguments(&expr->arguments);
  return close(std::move(expr));
}

void Parser::parse_arguments(CallArguments* out) {
  expect("(");
  bool any = false;
  while (!current().is(")")) {
    if (any) {
      expect(",");
      if (current().is(")")) break;
    }
    any = true;
    if (skip("*")) {
      if (out->star != nullptr || out->star_star != nullptr) error("invalid syntax for a function call: a second '*'");
      out->star = parse_expression();
    } else if (skip("**")) {
      if (out->star_star != nullptr) error("invalid syntax for a function call: a second '**'");
      out->star_star = parse_expression();
    } else if (current().kind == TokenKind::kName && ahead().is("=")) {
      if (out->star_star != nullptr) error("invalid syntax for a function call: a keyword after '**'");
      std::string word = next().text;
      next();
      for (const auto& [name, value] : out->keyword) {
        if (name == word) error(fmt::format("the keyword argument '{}' is repeated", word));
      }
      out->keyword.emplace_back(std::move(word), parse_expression());
    } else {
      if (out->star != nullptr || out->star_star != nullptr || !out->keyword.empty()) {
        error("invalid syntax for a function call: a positional argument after a keyword");
      }
      out->positional.push_back(parse_expression());
    }
  }
  expect(")");
}

std::string Parser::parse_dotted_word() {
  std::string word = expect_word();
  while (skip(".")) word += "." + expect_word();
  return word;
}

ExprPtr Parser::parse_filter(ExprPtr operand, bool inline_start) {
  while (inline_start || current().is("|")) {
    if (!inline_start) next();
    inline_start = false;
    const int line = current().line;
    std::string word = parse_dotted_word();
    if (!has_filter(word) && !may_be_skipped_) error(fmt::format("no filter named '{}'", word), line);
    ExprPtr expr = make(ExprKind::kFilter, std::move(operand));
    expr->word = std::move(word);
    if (current().is("(")) parse_arguments(&expr->arguments);
    operand = close(std::move(expr));
  }
  return operand;
}

bool Parser::test_has_bare_argument() const {
  const Token& token = current();
  if (token.is_name("else") || token.is_name("or") || token.is_name("and")) return false;
  return token.kind == TokenKind::kName || token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
         token.kind == TokenKind::kFloat || token.is("[") || token.is("{");
}

ExprPtr Parser::parse_test(ExprPtr operand) {
  DepthGuard guard(this);
  next();
  const bool negated = skip_name("not");
  const int line = current().line;
  std::string word = parse_dotted_word();
  if (!has_test(word) && !may_be_skipped_) error(fmt::format("no test named '{}'", word), line);
  ExprPtr expr = make(ExprKind::kTest, std::move(operand));
  expr->word = std::move(word);
  if (current().is("(")) {
    parse_arguments(&expr->arguments);
  } else if (test_has_bare_argument()) {
    if (current().is_name("is")) error("tests cannot be chained with 'is'");
    expr->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  expr = close(std::move(expr));
  return negated ? make(ExprKind::kNot, std::move(expr)) : std::move(expr);
}

}  // namespace coluber::jinja
