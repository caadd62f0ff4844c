// SPDX-License-Identifier: Apache-2.0
//
// What a request says of the form of its answer, in OpenAI's words (`response_format`) and vLLM's
// (`structured_outputs`, `guided_json` and its like), as a GrammarSpec. One way of saying it for the server and for
// `coluber batch`. Compiles nothing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/grammar/grammar.h"

namespace coluber {

struct AskedGrammar {
  GrammarSpec spec;
  std::string param;  // the field that says it ("response_format.json_schema.schema")
};

// `find` gives a field of the request, null where it is absent. None where the answer is free. A failure's `param` is
// the place.
Result<std::optional<AskedGrammar>> read_asked_grammar(const std::function<const Json*(std::string_view)>& find);

}  // namespace coluber
