// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/form_flags.h"

#include "base/error.h"
#include "base/mapped_file.h"

namespace coluber::cli {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

// What is no text of the kind is the name of a file.
std::string text_or_file(const std::string& given, bool is_text) {
  return is_text ? given : read_text_file(given, kMaxFileBytes);
}

}  // namespace

void FormFlags::declare(Arguments& arguments) {
  arguments.section("Form of the answer (one of these)");
  arguments.text("--json-schema", &json_schema_, "FILE|TEXT",
                 "JSON that this schema is right for; a text begins with {");
  arguments.text("--regex", &regex_, "TEXT", "a text that matches the expression, all of it");
  arguments.text("--grammar", &grammar_, "FILE|TEXT",
                 "a text that these rules make, the first called root; a text has ::= in it");
}

std::optional<AskedGrammar> FormFlags::asked() const {
  if (json_schema_.has_value() + regex_.has_value() + grammar_.has_value() > 1)
    throw Error(ErrorCode::kInvalidArgument, "--json-schema, --regex and --grammar exclude each other; give one");
  if (json_schema_)
    return AskedGrammar{{GrammarKind::kJsonSchema, text_or_file(*json_schema_, json_schema_->starts_with('{'))},
                        "--json-schema"};
  if (regex_) return AskedGrammar{{GrammarKind::kRegex, *regex_}, "--regex"};
  if (grammar_)
    return AskedGrammar{{GrammarKind::kEbnf, text_or_file(*grammar_, grammar_->find("::=") != std::string::npos)},
                        "--grammar"};
  return std::nullopt;
}

}  // namespace coluber::cli
