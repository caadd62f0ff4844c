// SPDX-License-Identifier: Apache-2.0
//
// Tokens to a tree. Depth is limited here, so that no later walk over the tree can exhaust the stack. Throws
// Fault(kSyntax).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template/ast.h"
#include "text/chat_template/fault.h"
#include "text/chat_template/lexer.h"

namespace coluber::jinja {

inline constexpr int kMaxParseDepth = 150;  // of brackets and blocks in one another
inline constexpr int kMaxTreeDepth = 1000;  // of a tree, which chains like a + b + c also deepen

std::unique_ptr<Program> parse_program(std::string_view source);

class Parser {
 public:
  Parser(std::vector<Token> tokens, Program* program) : tokens_(std::move(tokens)), program_(program) {}
  void parse();

 private:
  friend class DepthGuard;
  // Where one is: what ends a tuple, which words are special, what a macro's body uses.
  struct MacroUse {
    bool caller = false, varargs = false, kwargs = false;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool skip(std::string_view op);
  bool skip_name(std::string_view name);
  void expect(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_word();
  void expect_kind(TokenKind kind);
  [[noreturn]] void error(const std::string& message, int line = 0) const;

  // parser.cc: expressions
  ExprPtr make(ExprKind kind, ExprPtr a = nullptr, ExprPtr b = nullptr, ExprPtr c = nullptr);
  ExprPtr close(ExprPtr expr);
  ExprPtr parse_expression(bool with_conditional = true);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter = true);
  ExprPtr parse_primary();
  ExprPtr parse_name(const Token& token);
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filters(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  ExprPtr parse_subscript_part();
  ExprPtr parse_call(ExprPtr callee);
  void parse_arguments(CallArguments* out);
  ExprPtr parse_filter(ExprPtr operand, bool inline_start = false);
  ExprPtr parse_test(ExprPtr operand);
  bool test_has_bare_argument() const;
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_tuple(bool with_conditional = true, bool explicit_parentheses = false, std::string_view end_word = {});
  bool at_tuple_end(std::string_view end_word) const;
  std::string parse_dotted_word();

  // parser_statements.cc
  void parse_body(Body* body, const std::vector<std::string_view>& ends);
  void parse_statement(Body* body);
  void parse_print(Body* body, TokenKind end);
  void parse_if(Body* body);
  void parse_for(Body* body);
  void parse_set(Body* body);
  void parse_macro(Body* body);
  void parse_call_block(Body* body);
  void parse_filter_block(Body* body);
  void parse_with(Body* body);
  void parse_scope(Body* body, std::string_view end);
  void parse_named_block(Body* body);
  void parse_autoescape(Body* body);
  void parse_signature(Signature* signature);
  void parse_macro_body(Stmt* stmt, std::string_view end);
  void parse_inner(Body* body, std::string_view end);
  Target parse_target(bool with_namespace, std::string_view end_word, bool single = false);
  Target parse_single_target(bool with_namespace);
  Stmt& add(Body* body, StmtKind kind);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  Program* program_;
  int depth_ = 0;
  int loops_ = 0;  // around the current place, up to the innermost macro
  bool may_be_skipped_ =
      false;  // in the branch of an `if`, where an unknown filter is an error only when it is reached
  std::vector<MacroUse> macro_uses_;
};

// Counts brackets and blocks in one another.
class DepthGuard {
 public:
  explicit DepthGuard(Parser* parser) : parser_(parser) {
    if (++parser_->depth_ > kMaxParseDepth) {
      const int line = parser_->current().line;
      --parser_->depth_;
      throw Fault{FaultKind::kLimit, line,
                  fmt::format("more than {} brackets, operators or blocks in one another", kMaxParseDepth)};
    }
  }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  ~DepthGuard() { --parser_->depth_; }

 private:
  Parser* parser_;
};

}  // namespace coluber::jinja
