// SPDX-License-Identifier: Apache-2.0
//
// Answers of /v1/completions and /v1/chat/completions in OpenAI's shapes, whole and as chunks of a stream. Plain
// functions over what the engine gave; they know nothing of connections.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/server/completion_request.h"
#include "coluber/engine.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber::server {

// One of the answers so far, or what a chunk adds to it.
struct Choice {
  int64_t index = 0;
  std::string text;
  // Of a conversation: what was thought, and calls of tools.
  std::string reasoning;
  std::vector<CallDelta> calls;
  bool has_calls = false;  // now or before
  std::vector<TokenOutput> tokens;
  std::vector<TokenOutput> prompt_logprobs;  // of the prompt's tokens, where asked for
  FinishReason finish_reason = FinishReason::kNone;
  int64_t text_offset = 0;  // characters of the answer before `tokens`, as log-probabilities count them
  bool is_first = false;    // of the chunks of this answer
  bool is_last = false;     // of all chunks of the request
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, common_tokens = 0;
  MissReason miss_reason = MissReason::kNone;
  std::string session_id = {};  // that holds all these tokens; empty: none
};

struct AnswerHead {
  std::string id;
  int64_t created = 0;
  std::string model;
  const Tokenizer* tokenizer = nullptr;  // null where the model has none
};

Json usage_json(const Usage& usage);
// {"cache": {"hit_tokens", "common_tokens", "miss_reason"}, "session": {"id", "tokens"}}: what stands under "coluber".
Json cache_json(const Usage& usage);

// Adds what came of an answer to what there is, a call to itself.
void add_answer(Choice& choice, AnswerDelta&& delta);

Json whole_answer(const AnswerHead& head, const CompletionRequest& request, const std::vector<Choice>& choices,
                  const Usage& usage);
// `first`: the first chunk of this choice.
Json chunk_answer(const AnswerHead& head, const CompletionRequest& request, const Choice& added, bool first);
Json usage_chunk(const AnswerHead& head, const CompletionRequest& request, const Usage& usage);

// Characters of the tokens' texts, one by one.
int64_t text_length(const Tokenizer* tokenizer, const std::vector<TokenOutput>& tokens);

}  // namespace coluber::server
