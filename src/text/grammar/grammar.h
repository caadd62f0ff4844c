// SPDX-License-Identifier: Apache-2.0
//
// Answers held to a form: a JSON schema, an expression, a grammar, a choice of texts, or a structure of such parts. A
// spec is checked and compiled once for a vocabulary, and every sequence then has a matcher of its own that says which
// tokens may come next. Compiling takes milliseconds to seconds and belongs on a worker, never into the step loop.
// Knows no engine and samples nothing. Compilers and compiled grammars are thread-safe, a matcher belongs to one
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace coluber {

enum class GrammarKind { kJsonObject, kJsonSchema, kRegex, kEbnf, kChoice, kStructure };

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  // kJsonSchema: the schema. kRegex: an expression, which the whole answer matches. kEbnf: rules as `root ::= "a" | b`.
  // kStructure: a format of XGrammar's structural tags, as structure.h makes them.
  std::string text;
  std::vector<std::string> choices = {};  // kChoice: the answer is one of these
  std::vector<GrammarSpec> parts = {};    // kStructure: a client's specs that it is made of, to be checked
};

struct GrammarLimits {
  size_t max_bytes = 128 << 10;  // of a spec
  int max_depth = 48;            // of schemas, groups and repetitions in one another
  int64_t max_entries = 20'000;  // keys and values of a schema, of enums too
  int64_t max_choices = 4096;
  int64_t max_repeats = 100'000;  // what the bounds of repetitions in one another multiply to
  double max_seconds = 10.0;      // of one compilation
  // Of the processor's time for saying which tokens of one answer may come next: others wait for it in every step.
  double max_matching_seconds = 2.0;
  double matching_seconds_a_token = 0.01;  // more for each token
  int64_t max_cached_bytes = int64_t{256} << 20;
};

struct GrammarVocabulary {
  std::vector<std::string> tokens;  // the bytes of each id; empty: the token is never part of an answer
  std::vector<int32_t> end_ids;     // allowed where the answer may end, and at least one
};

class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;
  virtual std::unique_ptr<GrammarMatcher> fork() const = 0;
  // Bit t % 32 of word t / 32: whether token t may come next. At least (vocabulary + 31) / 32 words.
  virtual void fill_mask(std::span<uint32_t> bitmask) = 0;
  virtual bool accept(int32_t token) = 0;
  virtual void rollback(int num_tokens) = 0;
  // An end token has been accepted.
  virtual bool is_terminated() const = 0;
};

class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  virtual std::unique_ptr<GrammarMatcher> matcher() const = 0;
};

class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Equal specs are compiled once. A failure is the client's, and says which part of the spec is at fault.
  virtual Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec& spec) = 0;
};

// Throws Error(kUnsupported) where this build has no grammars.
std::shared_ptr<GrammarCompiler> make_grammar_compiler(GrammarVocabulary vocabulary, const GrammarLimits& limits = {});
bool has_grammars() noexcept;

}  // namespace coluber
