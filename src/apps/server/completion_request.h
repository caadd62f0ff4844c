// SPDX-License-Identifier: Apache-2.0
//
// What a client asks of /v1/completions and /v1/chat/completions: both bodies end in the same plain values. Checks
// every field; what cannot be served is refused by name. Computes nothing but the tokens of the prompt. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/server/json_fields.h"
#include "base/error.h"
#include "base/json.h"
#include "apps/server/conversation.h"
#include "coluber/engine.h"
#include "text/grammar/asked_grammar.h"

namespace coluber::server {

// What does not change while the server runs.
struct ModelFacts {
  std::vector<std::string> served_names;  // the first stands in answers
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  SamplingParams defaults;
  // Limits on what one request may ask for.
  int64_t max_n = 128;
  int64_t max_prompts = 2048;
  int64_t max_answers = 2048;  // of all prompts together
  int64_t max_logprobs = 20;
  int64_t max_stops = 16;
  size_t max_stop_bytes = 1024;
  // How answers of conversations are read; null: no tools may be given, nothing is thought.
  const ToolFormat* tool_format = nullptr;
  const ReasoningFormat* reasoning_format = nullptr;
  bool calls_are_special = false, reasoning_is_special = false;  // their marks are special tokens
};

struct CompletionRequest {
  bool chat = false;
  std::string session_id;
  int64_t held_tokens = 0;  // of the session, before the prompt
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> prompt_texts;  // for `echo`

  SamplingParams sampling;  // max_tokens is the request's, or what is left of the context
  int64_t n = 1, best_of = 0, beam_width = 0;
  double length_penalty = 1.0;
  bool early_stopping = false;
  int64_t priority = 0;
  std::string cache_salt;
  bool open_ended = false;  // nobody said how many tokens: less than all that is left of the context will do

  bool stream = false;
  bool include_usage = false, continuous_usage = false;
  bool echo = false;
  bool want_logprobs = false;
  bool return_token_ids = false;

  AnswerReading reading;                                   // of a conversation's answers
  std::optional<AskedGrammar> form;                        // of the answer
  std::shared_ptr<const TokenConstraint> constraint = {};  // that holds it to the form

  int64_t answers() const noexcept;  // sequences that it makes the engine run
};

// `body` is an object. `session`: of its 'session_id', which must have been looked up; null where there is none.
// `is_open_ended`: without a number of tokens the answer may be as long as the context leaves room for. `list` hears of
// every field.
Result<CompletionRequest> parse_completion(const Json& body, bool chat, const ModelFacts& facts, const Engine& engine,
                                           const HeldSession* session, bool is_open_ended, FieldList* list = nullptr);
// The body as an object: UTF-8, JSON, and an object. Duplicate keys are refused.
Result<Json> parse_body(const std::string& body);
// Texts, token ids, or lists of either, from the field `name`; what is not right is told to `fields`. `texts`, where
// not null, receives what each prompt is as a text. `special`: whether a text gets the model's own special tokens where
// the field 'add_special_tokens' does not say.
void read_prompts(JsonFields& fields, std::string_view name, const ModelFacts& facts, const Engine& engine,
                  std::vector<std::vector<int32_t>>* prompts, std::vector<std::string>* texts, bool special = true);
// Whether `model` in the body is one that is served; absent is fine.
void check_model(JsonFields& fields, const ModelFacts& facts);

}  // namespace coluber::server
