// SPDX-License-Identifier: Apache-2.0
#include "apps/server/completion_response.h"

#include <algorithm>

#include "apps/cli/logprobs.h"

namespace coluber::server {
namespace {

using cli::logprob_json;
using cli::token_name;

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

Json finish_json(const Choice& choice) {
  if (choice.finish_reason == FinishReason::kStop && choice.has_calls) return Json("tool_calls");
  return choice.finish_reason == FinishReason::kNone ? Json() : Json(finish_reason_name(choice.finish_reason));
}

// `id` of a call that the model gave none: the answer's, with the places of choice and call.
std::string call_id(const AnswerHead& head, const Choice& choice, const CallDelta& call) {
  if (!call.id.empty()) return call.id;
  return fmt::format("call_{}_{}_{}", head.id.substr(head.id.find('-') + 1), choice.index, call.index);
}

Json calls_json(const AnswerHead& head, const Choice& choice, bool with_index) {
  Json::Array calls;
  for (const CallDelta& call : choice.calls) {
    Json function(Json::Object{{"arguments", call.arguments}});
    if (!call.name.empty()) function = Json(Json::Object{{"name", call.name}, {"arguments", call.arguments}});
    Json json(Json::Object{});
    if (with_index) json.set("index", call.index);
    if (!call.name.empty()) {
      json.set("id", call_id(head, choice, call));
      json.set("type", "function");
    }
    json.set("function", std::move(function));
    calls.push_back(std::move(json));
  }
  return Json(std::move(calls));
}

Json message_json(const AnswerHead& head, const Choice& choice) {
  const bool calls_alone = choice.has_calls && choice.text.empty();
  Json message(
      Json::Object{{"role", "assistant"}, {"content", calls_alone ? Json() : Json(choice.text)}, {"refusal", Json()}});
  if (!choice.reasoning.empty()) message.set("reasoning_content", choice.reasoning);
  if (choice.has_calls) message.set("tool_calls", calls_json(head, choice, false));
  return message;
}

Json delta_json(const AnswerHead& head, const Choice& added, bool first) {
  Json delta(Json::Object{});
  const bool others = !added.reasoning.empty() || !added.calls.empty();
  if (first) delta.set("role", "assistant");
  if (!added.text.empty() || (first && !others)) delta.set("content", added.text);
  if (!added.reasoning.empty()) delta.set("reasoning_content", added.reasoning);
  if (!added.calls.empty()) delta.set("tool_calls", calls_json(head, added, true));
  return delta;
}

// The shape of /v1/completions: parallel lists.
Json listed_logprobs(const Tokenizer* tokenizer, const Choice& choice, bool with_prompt) {
  Json::Array tokens, logprobs, tops, offsets;
  int64_t offset = choice.text_offset;
  const auto add = [&](const TokenOutput& token, bool known) {
    const std::string text = token_name(tokenizer, token.id);
    Json::Object top;
    for (const TokenLogprob& other : token.top_logprobs)
      top.emplace_back(token_name(tokenizer, other.id), logprob_json(other.logprob));
    if (known && std::none_of(top.begin(), top.end(), [&](const Json::Member& m) { return m.first == text; }))
      top.emplace_back(text, logprob_json(token.logprob));
    tokens.emplace_back(text);
    logprobs.push_back(known ? logprob_json(token.logprob) : Json());
    tops.push_back(known ? Json(std::move(top)) : Json());
    offsets.emplace_back(offset);
    offset += characters(text);
  };
  if (with_prompt)
    for (size_t i = 0; i < choice.prompt_logprobs.size(); ++i) add(choice.prompt_logprobs[i], i > 0);
  for (const TokenOutput& token : choice.tokens) add(token, true);
  return Json(Json::Object{{"text_offset", std::move(offsets)},
                           {"token_logprobs", std::move(logprobs)},
                           {"tokens", std::move(tokens)},
                           {"top_logprobs", std::move(tops)}});
}

// vLLM's shape: one object a token of the prompt, by id; null for the first.
Json prompt_logprobs_json(const Tokenizer* tokenizer, const std::vector<TokenOutput>& prompt) {
  Json::Array all;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i == 0) {
      all.emplace_back();
      continue;
    }
    Json::Object entries;
    const auto add = [&](int32_t id, float logprob) {
      const std::string key = std::to_string(id);
      if (std::any_of(entries.begin(), entries.end(), [&](const Json::Member& m) { return m.first == key; })) return;
      entries.emplace_back(
          key, Json::Object{{"logprob", logprob_json(logprob)}, {"decoded_token", token_name(tokenizer, id)}});
    };
    add(prompt[i].id, prompt[i].logprob);
    for (const TokenLogprob& other : prompt[i].top_logprobs) add(other.id, other.logprob);
    all.emplace_back(std::move(entries));
  }
  return Json(std::move(all));
}

Json token_ids_json(const std::vector<TokenOutput>& tokens) {
  Json::Array ids;
  for (const TokenOutput& token : tokens) ids.emplace_back(token.id);
  return Json(std::move(ids));
}

// What both shapes of a choice have behind the text.
void finish_choice(const AnswerHead& head, const CompletionRequest& request, const Choice& choice, Json& json) {
  const bool echoed = request.echo && !choice.prompt_logprobs.empty();
  Json logprobs;
  if (request.want_logprobs && (!choice.tokens.empty() || echoed)) {
    logprobs = request.chat ? cli::openai_logprobs(head.tokenizer, choice.tokens)
                            : listed_logprobs(head.tokenizer, choice, echoed);
  }
  json.set("logprobs", std::move(logprobs));
  json.set("finish_reason", finish_json(choice));
  if (!choice.prompt_logprobs.empty() && !echoed)
    json.set("prompt_logprobs", prompt_logprobs_json(head.tokenizer, choice.prompt_logprobs));
  if (request.return_token_ids) json.set("token_ids", token_ids_json(choice.tokens));
}

Json answer_head(const AnswerHead& head, std::string_view object) {
  Json json;
  json.set("id", head.id);
  json.set("object", object);
  json.set("created", head.created);
  json.set("model", head.model);
  return json;
}

}  // namespace

Json usage_json(const Usage& usage) {
  return Json(Json::Object{{"prompt_tokens", usage.prompt_tokens},
                           {"completion_tokens", usage.completion_tokens},
                           {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                           {"prompt_tokens_details", Json::Object{{"cached_tokens", usage.cached_tokens}}}});
}

Json cache_json(const Usage& usage) {
  const bool missed = usage.miss_reason != MissReason::kNone;
  Json json(Json::Object{
      {"cache", Json::Object{{"hit_tokens", usage.cached_tokens},
                             {"common_tokens", usage.common_tokens},
                             {"miss_reason", missed ? Json(miss_reason_name(usage.miss_reason)) : Json()}}}});
  if (!usage.session_id.empty())
    json.set("session",
             Json::Object{{"id", usage.session_id}, {"tokens", usage.prompt_tokens + usage.completion_tokens}});
  return json;
}

void add_answer(Choice& choice, AnswerDelta&& delta) {
  choice.text += delta.content;
  choice.reasoning += delta.reasoning;
  for (CallDelta& call : delta.calls) {
    choice.has_calls = true;
    if (choice.calls.empty() || choice.calls.back().index != call.index) {
      choice.calls.push_back(std::move(call));
    } else {
      choice.calls.back().arguments += call.arguments;
    }
  }
}

Json whole_answer(const AnswerHead& head, const CompletionRequest& request, const std::vector<Choice>& choices,
                  const Usage& usage) {
  Json json = answer_head(head, request.chat ? "chat.completion" : "text_completion");
  Json::Array all;
  for (const Choice& choice : choices) {
    Json one;
    one.set("index", choice.index);
    if (request.chat) {
      one.set("message", message_json(head, choice));
    } else {
      one.set("text", choice.text);
    }
    finish_choice(head, request, choice, one);
    if (request.return_token_ids) {
      Json::Array ids;
      const size_t prompt = static_cast<size_t>(choice.index / request.n);
      for (const int32_t id : request.prompts[prompt]) ids.emplace_back(id);
      one.set("prompt_token_ids", std::move(ids));
    }
    all.push_back(std::move(one));
  }
  json.set("choices", std::move(all));
  json.set("usage", usage_json(usage));
  json.set("coluber", cache_json(usage));
  return json;
}

Json chunk_answer(const AnswerHead& head, const CompletionRequest& request, const Choice& added, bool first) {
  Json json = answer_head(head, request.chat ? "chat.completion.chunk" : "text_completion");
  Json one;
  one.set("index", added.index);
  if (request.chat) {
    one.set("delta", delta_json(head, added, first));
  } else {
    one.set("text", added.text);
  }
  finish_choice(head, request, added, one);
  json.set("choices", Json::Array{std::move(one)});
  if (request.include_usage && !request.continuous_usage) json.set("usage", Json());
  return json;
}

Json usage_chunk(const AnswerHead& head, const CompletionRequest& request, const Usage& usage) {
  Json json = answer_head(head, request.chat ? "chat.completion.chunk" : "text_completion");
  json.set("choices", Json(Json::Array{}));
  json.set("usage", usage_json(usage));
  json.set("coluber", cache_json(usage));
  return json;
}

int64_t text_length(const Tokenizer* tokenizer, const std::vector<TokenOutput>& tokens) {
  int64_t length = 0;
  for (const TokenOutput& token : tokens) length += characters(token_name(tokenizer, token.id));
  return length;
}

}  // namespace coluber::server
