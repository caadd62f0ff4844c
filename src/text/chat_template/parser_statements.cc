// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "text/chat_template/parser.h"

namespace coluber::jinja {

std::unique_ptr<Program> parse_program(std::string_view source) {
  auto program = std::make_unique<Program>();
  program->loop = program->names.intern("loop");
  program->caller = program->names.intern("caller");
  program->varargs = program->names.intern("varargs");
  program->kwargs = program->names.intern("kwargs");
  Parser(tokenize(source), program.get()).parse();
  return program;
}

namespace {

bool assigns(const Target& target, NameId name) {
  return target.name == name || std::any_of(target.items.begin(), target.items.end(),
                                            [name](const Target& item) { return assigns(item, name); });
}

}  // namespace

void Parser::parse() { parse_body(&program_->body, {}); }

Stmt& Parser::add(Body* body, StmtKind kind) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = tokens_[at_ > 0 ? at_ - 1 : 0].line;
  body->push_back(std::move(stmt));
  return *body->back();
}

// Up to the block whose word is one of `ends` (the word is left to the caller), or to the end of the template.
void Parser::parse_body(Body* body, const std::vector<std::string_view>& ends) {
  DepthGuard guard(this);
  const int opened = current().line;
  for (;;) {
    switch (current().kind) {
      case TokenKind::kEnd:
        if (ends.empty()) return;
        error(fmt::format("the template ends where {{% {} %}} was expected for the block opened in line {}",
                          ends.front(), opened));
      case TokenKind::kData:
        add(body, StmtKind::kText).text = constant_string(current().text);
        next();
        break;
      case TokenKind::kVariableBegin:
        next();
        parse_print(body, TokenKind::kVariableEnd);
        break;
      default: {
        next();  // kBlockBegin: the lexer leaves nothing else here
        const Token& word = current();
        if (word.kind == TokenKind::kName && std::find(ends.begin(), ends.end(), word.text) != ends.end()) return;
        parse_statement(body);
        break;
      }
    }
  }
}

void Parser::parse_statement(Body* body) {
  const Token word = current();
  if (word.kind != TokenKind::kName) error(fmt::format("expected a statement's name, found {}", describe(word)));
  next();
  const std::string& name = word.text;
  if (name == "if") return parse_if(body);
  if (name == "for") return parse_for(body);
  if (name == "set") return parse_set(body);
  if (name == "macro") return parse_macro(body);
  if (name == "call") return parse_call_block(body);
  if (name == "filter") return parse_filter_block(body);
  if (name == "with") return parse_with(body);
  if (name == "generation") return parse_scope(body, "endgeneration");
  if (name == "block") return parse_named_block(body);
  if (name == "autoescape") return parse_autoescape(body);
  if (name == "print") return parse_print(body, TokenKind::kBlockEnd);
  if (name == "break" || name == "continue") {
    if (loops_ == 0) error(fmt::format("'{}' outside of a loop", name), word.line);
    add(body, name == "break" ? StmtKind::kBreak : StmtKind::kContinue);
    return expect_kind(TokenKind::kBlockEnd);
  }
  if (name == "include" || name == "import" || name == "from" || name == "extends") {
    error(fmt::format("{{% {} %}} is not supported: a chat template is one file and can load no other", name),
          word.line);
  }
  if (name.starts_with("end") || name == "else" || name == "elif") {
    error(fmt::format("unexpected {{% {} %}}: no block that it would end is open here", name), word.line);
  }
  error(fmt::format("unknown tag '{}'", name), word.line);
}

void Parser::parse_print(Body* body, TokenKind end) {
  Stmt& stmt = add(body, StmtKind::kPrint);
  stmt.line = current().line;
  if (end == TokenKind::kVariableEnd) {
    stmt.exprs.push_back(parse_tuple());
  } else {
    while (current().kind != end) {
      if (!stmt.exprs.empty()) expect(",");
      stmt.exprs.push_back(parse_expression());
    }
  }
  expect_kind(end);
}

void Parser::parse_if(Body* body) {
  Stmt& stmt = add(body, StmtKind::kIf);
  const bool outer = may_be_skipped_;
  may_be_skipped_ = true;
  for (;;) {
    stmt.exprs.push_back(parse_tuple(false));
    expect_kind(TokenKind::kBlockEnd);
    parse_body(&stmt.bodies.emplace_back(), {"endif", "elif", "else"});
    const std::string word = next().text;
    if (word == "elif") continue;
    if (word == "else") {
      expect_kind(TokenKind::kBlockEnd);
      parse_body(&stmt.bodies.emplace_back(), {"endif"});
      next();
    }
    break;
  }
  may_be_skipped_ = outer;
  expect_kind(TokenKind::kBlockEnd);
}

void Parser::parse_for(Body* body) {
  Stmt& stmt = add(body, StmtKind::kFor);
  const bool outer = may_be_skipped_;
  stmt.targets.push_back(parse_target(false, "in"));
  if (assigns(stmt.targets[0], program_->loop))
    error("cannot assign to the special variable 'loop' as the target of a loop");
  expect_name("in");
  stmt.exprs.push_back(parse_tuple(false, false, "recursive"));
  may_be_skipped_ = false;
  stmt.exprs.push_back(skip_name("if") ? parse_expression() : nullptr);
  stmt.recursive = skip_name("recursive");
  expect_kind(TokenKind::kBlockEnd);
  ++loops_;
  parse_body(&stmt.bodies.emplace_back(), {"endfor", "else"});
  --loops_;
  if (next().text == "else") {
    expect_kind(TokenKind::kBlockEnd);
    parse_body(&stmt.bodies.emplace_back(), {"endfor"});
    next();
  }
  may_be_skipped_ = outer;
  expect_kind(TokenKind::kBlockEnd);
}

Target Parser::parse_single_target(bool with_namespace) {
  DepthGuard guard(this);
  if (skip("(")) {
    Target target = parse_target(with_namespace, {});
    expect(")");
    return target;
  }
  const Token token = current();
  if (token.kind != TokenKind::kName) error(fmt::format("expected a name to assign to, found {}", describe(token)));
  next();
  const std::string& word = token.text;
  if (word == "true" || word == "false" || word == "none" || word == "True" || word == "False" || word == "None") {
    error(fmt::format("cannot assign to '{}'", word), token.line);
  }
  Target target;
  target.name = program_->names.intern(word);
  if (with_namespace && skip(".")) target.attribute = expect_word();
  return target;
}

Target Parser::parse_target(bool with_namespace, std::string_view end_word, bool single) {
  Target first = parse_single_target(with_namespace);
  if (single || !current().is(",")) return first;
  Target tuple;
  tuple.is_tuple = true;
  tuple.items.push_back(std::move(first));
  while (skip(",")) {
    if (at_tuple_end(end_word) || current().is("=")) break;
    tuple.items.push_back(parse_single_target(with_namespace));
  }
  return tuple;
}

// A body with variables of its own, closed by {% end %}.
void Parser::parse_inner(Body* body, std::string_view end) {
  const bool outer = may_be_skipped_;
  may_be_skipped_ = false;
  parse_body(body, {end});
  may_be_skipped_ = outer;
  next();
  if (end == "endblock" && current().kind == TokenKind::kName) next();
  expect_kind(TokenKind::kBlockEnd);
}

void Parser::parse_set(Body* body) {
  Stmt& stmt = add(body, StmtKind::kSet);
  stmt.targets.push_back(parse_target(true, {}));
  if (skip("=")) {
    stmt.exprs.push_back(parse_tuple());
    return expect_kind(TokenKind::kBlockEnd);
  }
  stmt.kind = StmtKind::kSetBlock;
  stmt.exprs.push_back(parse_filter(nullptr));
  expect_kind(TokenKind::kBlockEnd);
  parse_inner(&stmt.bodies.emplace_back(), "endset");
}

void Parser::parse_signature(Signature* signature) {
  expect("(");
  while (!current().is(")")) {
    if (!signature->parameters.empty()) expect(",");
    if (current().is(")")) break;
    const int line = current().line;
    Target target = parse_single_target(false);
    if (target.is_tuple) error("a parameter must be a name", line);
    Parameter parameter{target.name, program_->names.words[static_cast<size_t>(target.name)], nullptr};
    if (skip("=")) {
      parameter.fallback = parse_expression();
    } else if (!signature->parameters.empty() && signature->parameters.back().fallback != nullptr) {
      error(fmt::format("the parameter '{}' without a default follows one with a default", parameter.word), line);
    }
    if (parameter.name == program_->caller && parameter.fallback == nullptr) {
      error("the special parameter 'caller' must be left out or have a default", line);
    }
    signature->parameters.push_back(std::move(parameter));
  }
  expect(")");
}

void Parser::parse_macro_body(Stmt* stmt, std::string_view end) {
  const int outer_loops = std::exchange(loops_, 0);
  macro_uses_.emplace_back();
  parse_inner(&stmt->bodies.emplace_back(), end);
  const MacroUse use = macro_uses_.back();
  macro_uses_.pop_back();
  loops_ = outer_loops;
  const auto declared = [stmt](std::string_view word) {
    return std::any_of(stmt->signature.parameters.begin(), stmt->signature.parameters.end(),
                       [word](const Parameter& parameter) { return parameter.word == word; });
  };
  stmt->signature.uses_caller = use.caller;
  stmt->signature.uses_varargs = use.varargs && !declared("varargs");
  stmt->signature.uses_kwargs = use.kwargs && !declared("kwargs");
}

void Parser::parse_macro(Body* body) {
  Stmt& stmt = add(body, StmtKind::kMacro);
  stmt.targets.push_back(parse_target(false, {}, true));
  if (stmt.targets[0].is_tuple) error("a macro's name must be a name");
  stmt.signature.name = program_->names.words[static_cast<size_t>(stmt.targets[0].name)];
  parse_signature(&stmt.signature);
  expect_kind(TokenKind::kBlockEnd);
  parse_macro_body(&stmt, "endmacro");
}

void Parser::parse_call_block(Body* body) {
  Stmt& stmt = add(body, StmtKind::kCallBlock);
  stmt.signature.name = "caller";
  if (current().is("(")) parse_signature(&stmt.signature);
  const int line = current().line;
  stmt.exprs.push_back(parse_expression());
  if (stmt.exprs[0]->kind != ExprKind::kCall) error("expected a call in {% call %}", line);
  expect_kind(TokenKind::kBlockEnd);
  parse_macro_body(&stmt, "endcall");
}

void Parser::parse_filter_block(Body* body) {
  Stmt& stmt = add(body, StmtKind::kFilterBlock);
  stmt.exprs.push_back(parse_filter(nullptr, true));
  expect_kind(TokenKind::kBlockEnd);
  parse_inner(&stmt.bodies.emplace_back(), "endfilter");
}

void Parser::parse_with(Body* body) {
  Stmt& stmt = add(body, StmtKind::kWith);
  while (current().kind != TokenKind::kBlockEnd) {
    if (!stmt.targets.empty()) expect(",");
    stmt.targets.push_back(parse_target(false, {}, true));
    expect("=");
    stmt.exprs.push_back(parse_expression());
  }
  expect_kind(TokenKind::kBlockEnd);
  parse_inner(&stmt.bodies.emplace_back(), "endwith");
}

void Parser::parse_scope(Body* body, std::string_view end) {
  Stmt& stmt = add(body, StmtKind::kScope);
  expect_kind(TokenKind::kBlockEnd);
  const int outer_loops = std::exchange(loops_, 0);
  parse_inner(&stmt.bodies.emplace_back(), end);
  loops_ = outer_loops;
}

void Parser::parse_named_block(Body* body) {
  expect_word();
  skip_name("scoped");
  parse_scope(body, "endblock");
}

void Parser::parse_autoescape(Body* body) {
  const ExprPtr mode = parse_expression();
  const bool off = mode->kind == ExprKind::kConstant && mode->constant.is_bool() && !mode->constant.boolean();
  if (!off) error("{% autoescape %} can only be false: chat templates make plain text");
  parse_scope(body, "endautoescape");
}

}  // namespace coluber::jinja
