// SPDX-License-Identifier: Apache-2.0
//
// What stands before the compiler of grammars: limits that keep a spec from taking the machine, and the keywords of
// JSON schemas that the compiler would pass over in silence, so that an answer could break them. Validates nothing
// else: that is the compiler's work. Plain functions.
#pragma once

#include "text/grammar/grammar.h"

namespace coluber {

// Fails (kInvalidArgument, kUnsupported) with the place inside the spec.
Result<void> check_grammar_spec(const GrammarSpec& spec, const GrammarLimits& limits);

}  // namespace coluber
