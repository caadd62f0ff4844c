// SPDX-License-Identifier: Apache-2.0
//
// The tree of a parsed template. Names are numbers of a table, so that scopes compare integers. Immutable once parsed
// and shared by all renderings, from any thread.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/chat_template/value.h"

namespace coluber::jinja {

using NameId = int;

struct Names {
  std::vector<std::string> words;
  std::unordered_map<std::string, NameId> ids;

  NameId intern(const std::string& word) {
    const auto [it, added] = ids.emplace(word, static_cast<NameId>(words.size()));
    if (added) words.push_back(word);
    return it->second;
  }
};

enum class ExprKind : uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,
  kAttribute,
  kSubscript,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kConditional,
  kCompare,
  kConcat,
  kBinary,
};

enum class Op : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star, star_star;
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  Op op = Op::kAdd;
  int line = 0;
  int depth = 1;
  NameId name = -1;  // kName
  std::string word;  // kAttribute, kFilter, kTest
  Value constant;    // kConstant; kAttribute: the word as a value
  ExprPtr a, b, c;   // operands; kConditional: test, then, else; kSlice: start, stop, step (each may be null);
                     // kFilter in a filter block: `a` is null
  std::vector<ExprPtr> items;  // kList, kTuple, kConcat; kDict: key, value, key, ...; kCompare: the right-hand sides
  std::vector<Op> ops;         // kCompare
  CallArguments arguments;     // kCall, kFilter, kTest
};

enum class StmtKind : uint8_t {
  kText,
  kPrint,
  kSet,
  kSetBlock,
  kIf,
  kFor,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,
  kBreak,
  kContinue
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

// Where a value goes: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  NameId name = -1;
  std::string attribute;  // of the namespace `name`, where not empty
  std::vector<Target> items;
  bool is_tuple = false;
};

struct Parameter {
  NameId name;
  std::string word;
  ExprPtr fallback;
};

struct Signature {
  std::string name;
  std::vector<Parameter> parameters;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  Value text;  // kText
  std::vector<ExprPtr>
      exprs;  // kPrint; kSet: the value; kFor: iterable, and the filter or null;
              // kIf: the tests; kSetBlock, kFilterBlock: the filter or none; kCallBlock: the call; kWith: values
  std::vector<Target> targets;  // kSet, kSetBlock, kFor, kWith, kMacro
  std::vector<Body> bodies;     // kIf: one a test, then the else; kFor: body, else
  bool recursive = false;       // kFor
  Signature signature;          // kMacro, kCallBlock
};

struct Program {
  Names names;
  Body body;
  NameId loop = -1, caller = -1, varargs = -1, kwargs = -1;
};

}  // namespace coluber::jinja
