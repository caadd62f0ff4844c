// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/grammar.h"

namespace coluber {

bool has_grammars() noexcept { return false; }

std::shared_ptr<GrammarCompiler> make_grammar_compiler(GrammarVocabulary, const GrammarLimits&) {
  throw Error(ErrorCode::kUnsupported,
              "this build holds no answer to a form: it was configured without XGrammar, or where that could not be "
              "downloaded (COLUBER_GRAMMAR in docs/dependencies.md)");
}

}  // namespace coluber
