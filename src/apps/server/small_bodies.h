// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the routes that need no file of their own, read field by field. What is wrong is told by the fields'
// `finish`. Plain functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/server/completion_request.h"

namespace coluber::server {

struct TokenizeBody {
  std::string text;
  std::optional<RenderedConversation> conversation;  // in place of the text
  bool special = true;
  bool wants_strings = false;
};
TokenizeBody read_tokenize(JsonFields& fields, const ModelFacts& facts, const Engine& engine);

// Of /v1/messages/count_tokens: the tokens of a conversation that Anthropic's words have been translated from.
Result<int64_t> count_tokens(JsonFields& fields, const ModelFacts& facts, const Engine& engine);

struct DetokenizeBody {
  std::vector<int32_t> tokens;
};
DetokenizeBody read_detokenize(JsonFields& fields, const ModelFacts& facts, const Engine& engine);

struct RollbackBody {
  int64_t tokens = 0;
};
RollbackBody read_rollback(JsonFields& fields, const ModelFacts& facts, const Engine& engine);

struct SaveBody {
  std::string file;  // empty: the session's id
  bool has_file = false;
};
SaveBody read_save(JsonFields& fields, const ModelFacts& facts, const Engine& engine);

}  // namespace coluber::server
