// SPDX-License-Identifier: Apache-2.0
//
// Structures of answers in the words of XGrammar's structural tags: literal texts, schemas, marks around them, one
// behind another. What is put together here is a GrammarSpec of kind kStructure. Plain functions.
#pragma once

#include <string_view>

#include "base/json.h"
#include "text/grammar/grammar.h"

namespace coluber {

Json literal_format(std::string_view text);
// `style`: how the object is written, where that is not JSON ("qwen_xml").
Json schema_format(const Json& schema, std::string_view style = {});
Json pattern_format(std::string_view expression);
Json tag_format(std::string_view begin, Json content, std::string_view end);
// One of the tags or, where `many`, several apart by `separator`.
Json tags_format(Json::Array tags, std::string_view separator, bool many);
Json sequence_format(Json::Array parts);
Json either_format(Json::Array parts);
// Any text that ends with `end`; with a `begin` it may be missing.
Json thought_format(std::string_view begin, std::string_view end, bool is_begun);
// What the spec, no structure itself, asks for.
Json form_format(const GrammarSpec& spec);

GrammarSpec structure_spec(const Json& format, std::vector<GrammarSpec> parts);

// A grammar of which the texts are all that there is.
std::string rules_of_choices(const std::vector<std::string>& choices);

}  // namespace coluber
