// SPDX-License-Identifier: Apache-2.0
//
// The tools of a request, what it says of their use, and what an answer is held to where it must call one. Plain
// values.
#pragma once

#include <string>

#include "apps/server/json_fields.h"
#include "text/grammar/structure.h"
#include "text/tool_parser/answer_reader.h"

namespace coluber::server {

struct AskedTools {
  enum class Choice { kNone, kAuto, kRequired, kNamed };
  Json tools;  // as OpenAI has them; null: none, or none that may be called
  Choice choice = Choice::kNone;
  std::string name;  // kNamed
  bool many = true;  // calls in one answer

  bool may_call() const noexcept { return choice != Choice::kNone; }
  bool must_call() const noexcept { return choice == Choice::kRequired || choice == Choice::kNamed; }
};

// `tools`, `tool_choice`, `parallel_tool_calls`; what is wrong is told to `fields`.
AskedTools read_tools(JsonFields& fields);

// The grammar of calls in `format`, with the schemas in it that are the client's.
Json calls_structure(const AskedTools& asked, const ToolFormat& format, std::vector<GrammarSpec>* parts);

}  // namespace coluber::server
