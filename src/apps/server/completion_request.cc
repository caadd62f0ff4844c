// SPDX-License-Identifier: Apache-2.0
#include "apps/server/completion_request.h"

#include <algorithm>
#include <limits>

#include "apps/cli/next_turn.h"
#include "base/utf8.h"
#include "text/grammar/spec_checks.h"

namespace coluber::server {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr size_t kMaxText = size_t{1} << 30;  // the body's limit comes first
constexpr size_t kMaxSaltBytes = 256;
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default on the route without a conversation

void read_number(JsonFields& fields, std::string_view name, double low, double high, float* value) {
  double given = 0.0;
  if (fields.number(name, low, high, &given)) *value = static_cast<float>(given);
}

void read_stops(JsonFields& fields, const ModelFacts& facts, SamplingParams& sampling) {
  const Json* stop = fields.find("stop", R"({"type": ["string", "array", "null"], "items": {"type": "string"}})");
  if (stop != nullptr) {
    const Json::Array one{*stop};
    const Json::Array& stops = stop->is_array() ? stop->as_array() : one;
    const bool fine =
        std::ssize(stops) <= facts.max_stops && std::all_of(stops.begin(), stops.end(), [&](const Json& s) {
          return s.is_string() && !s.as_string().empty() && s.as_string().size() <= facts.max_stop_bytes;
        });
    if (!fine)
      return fields.wrong("stop",
                          fmt::format("a text or a list of at most {} texts, each of 1 to {} bytes", facts.max_stops,
                                      facts.max_stop_bytes),
                          *stop);
    sampling.stop.clear();
    for (const Json& text : stops) sampling.stop.push_back(text.as_string());
  }
  fields.ids("stop_token_ids", facts.vocab_size, &sampling.stop_token_ids);
}

// {"50256": -100}
void read_bias(JsonFields& fields, const ModelFacts& facts, SamplingParams& sampling) {
  const Json* bias =
      fields.find("logit_bias", R"({"type": ["object", "null"], "additionalProperties": {"type": "number"}})");
  if (bias == nullptr) return;
  const std::string expected =
      fmt::format("an object of token ids (0 to {}) to numbers from -100 to 100", facts.vocab_size - 1);
  if (!bias->is_object()) return fields.wrong("logit_bias", expected, *bias);
  for (const auto& [key, value] : bias->as_object()) {
    const bool digits = !key.empty() && key.size() <= 9 &&
                        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    const int64_t id = digits ? std::stoll(key) : -1;
    if (id < 0 || id >= facts.vocab_size || !value.is_number() || !(value.as_double() >= -100.0) ||
        !(value.as_double() <= 100.0))
      return fields.problem("logit_bias", fmt::format("'logit_bias' must be {}, found {}: {}", expected,
                                                      Json(key.substr(0, 20)).dump(-1, true), value.type_name()));
    sampling.logit_bias.push_back({static_cast<int32_t>(id), static_cast<float>(value.as_double())});
  }
}

void read_sampling(JsonFields& fields, const ModelFacts& facts, SamplingParams& sampling) {
  read_number(fields, "temperature", 0.0, 1e4, &sampling.temperature);
  read_number(fields, "top_p", 0.0, 1.0, &sampling.top_p);
  if (sampling.top_p <= 0.0f)
    fields.problem("top_p", "'top_p' must be above 0, found 0; 'temperature' 0 takes the likeliest token");
  read_number(fields, "min_p", 0.0, 1.0, &sampling.min_p);
  fields.integer("top_k", -1, kMaxTokens, &sampling.top_k);
  read_number(fields, "repetition_penalty", 0.0, 1e4, &sampling.repetition_penalty);
  read_number(fields, "presence_penalty", -2.0, 2.0, &sampling.presence_penalty);
  read_number(fields, "frequency_penalty", -2.0, 2.0, &sampling.frequency_penalty);
  int64_t seed = 0;
  if (fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), &seed))
    sampling.seed = static_cast<uint64_t>(seed);
  fields.integer("min_tokens", 0, kMaxTokens, &sampling.min_tokens);
  fields.boolean("ignore_eos", &sampling.ignore_eos);
  fields.boolean("skip_special_tokens", &sampling.skip_special_tokens);
  fields.boolean("include_stop_str_in_output", &sampling.include_stop_str_in_output);
  fields.ids("allowed_token_ids", facts.vocab_size, &sampling.allowed_token_ids);
  int64_t prompt_logprobs = 0;
  if (fields.integer("prompt_logprobs", 0, facts.max_logprobs, &prompt_logprobs))
    sampling.prompt_logprobs = static_cast<int>(prompt_logprobs);
  read_stops(fields, facts, sampling);
  read_bias(fields, facts, sampling);
}

void read_serving(JsonFields& fields, const ModelFacts& facts, CompletionRequest& request) {
  fields.integer("n", 1, facts.max_n, &request.n);
  fields.boolean("stream", &request.stream);
  if (fields.has("stream_options") && !request.stream)
    fields.problem("stream_options", "'stream_options' is for streams; set 'stream' to true");
  fields.object("stream_options", [&request](JsonFields& inner) {
    inner.boolean("include_usage", &request.include_usage);
    inner.boolean("continuous_usage_stats", &request.continuous_usage);
    inner.refuse("include_obfuscation", "answers are not padded", Json(false));
  });
  bool beams = false;
  fields.boolean("use_beam_search", &beams);
  fields.number("length_penalty", -10.0, 10.0, &request.length_penalty);
  fields.boolean("early_stopping", &request.early_stopping);
  if (beams) request.beam_width = std::max(request.n, request.best_of);
  fields.integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                 &request.priority);
  fields.text("cache_salt", &request.cache_salt, kMaxSaltBytes);
  fields.boolean("return_token_ids", &request.return_token_ids);
  for (const std::string_view told : {"user", "metadata", "request_id", "safety_identifier", "prompt_cache_key"})
    fields.note(told);
}

void read_form(JsonFields& fields, CompletionRequest& request) {
  Result<std::optional<AskedGrammar>> asked =
      read_asked_grammar([&fields](std::string_view name) { return fields.find(name); });
  if (!asked) return fields.problem(asked.error().param, asked.error().message, asked.error().code);
  request.form = std::move(*asked);
  if (request.form && request.beam_width > 0)
    fields.problem("use_beam_search",
                   fmt::format("'use_beam_search' does not go with '{}': beams follow the model's own probabilities",
                               request.form->param),
                   ErrorCode::kUnsupported);
}

// What both routes of OpenAI or vLLM know and this server does not do.
void refuse_others(JsonFields& fields) {
  fields.refuse("guided_decoding_backend", "there is one way of holding answers to a form");
  fields.refuse("guided_whitespace_pattern", "blanks between parts of JSON are the model's");
  fields.refuse("spaces_between_special_tokens", "special tokens are never set apart by spaces", Json(false));
  fields.refuse("truncate_prompt_tokens", "prompts are never cut");
  fields.refuse("logits_processors", "no code of clients is run");
  fields.refuse("vllm_xargs", "there are no extra arguments");
  fields.refuse("kv_transfer_params", "states are not moved between servers");
  fields.refuse("return_tokens_as_token_ids", "ask for 'return_token_ids' instead", Json(false));
  fields.refuse("store", "answers are not kept", Json(false));
}

// ---- prompts ---------------------------------------------------------------------------------------------------

void encode_prompt(JsonFields& fields, std::string_view name, const Engine& engine, const std::string& text,
                   bool special, std::vector<std::vector<int32_t>>* prompts, std::vector<std::string>* texts) {
  if (!engine.has_tokenizer())
    return fields.problem(name, "this model has no tokenizer, so it cannot read text; give token ids");
  prompts->push_back(engine.encode(text, special));
  if (texts != nullptr) texts->push_back(text);
}

// What is thought, what is called and the form that was asked for, as one form.
void hold_answer(const AskedTools& tools, const AnswerReading& reading, std::optional<AskedGrammar>& form) {
  if (!form && !tools.must_call()) return;
  if (form && reading.reasoning == nullptr && !tools.may_call()) return;
  std::vector<GrammarSpec> parts;
  Json answer;
  if (form) {
    parts.push_back(form->spec);
    if (auto fine = check_grammar_spec(form->spec, {}); !fine) return;  // told where it is compiled
    answer = form_format(form->spec);
  }
  if (tools.may_call()) {
    Json calls = calls_structure(tools, *reading.calls, &parts);
    answer = form ? either_format({std::move(answer), std::move(calls)}) : std::move(calls);
  }
  if (reading.reasoning != nullptr) {
    const ReasoningFormat& thought = *reading.reasoning;
    answer = sequence_format({thought_format(thought.begin, thought.end, reading.reasoning_open), std::move(answer)});
  }
  form = AskedGrammar{structure_spec(answer, std::move(parts)), form ? form->param : "tools"};
}

void read_chat_logprobs(JsonFields& fields, const ModelFacts& facts, CompletionRequest& request) {
  int64_t top = 0;
  fields.boolean("logprobs", &request.want_logprobs);
  const bool has_top = fields.integer("top_logprobs", 0, facts.max_logprobs, &top);
  if (has_top && !request.want_logprobs) fields.problem("top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
  if (request.want_logprobs) request.sampling.logprobs = static_cast<int>(top);
}

// How the answer is read, and what it is held to.
void read_answer(JsonFields& fields, const ModelFacts& facts, const RenderedConversation& conversation,
                 CompletionRequest& request) {
  const AskedTools& tools = conversation.tools;
  if (tools.may_call() && facts.tool_format == nullptr)
    return fields.problem("tools",
                          "'tools' is not supported: this model's chat template has no place for tools; describe them "
                          "in a message (or serve with --tool-call-parser)",
                          ErrorCode::kUnsupported);
  if (tools.must_call() && request.form)
    return fields.problem(request.form->param, fmt::format("'{}' does not go with a 'tool_choice' that asks for a call",
                                                           request.form->param));
  if (tools.must_call() && request.beam_width > 0)
    return fields.problem("use_beam_search", "'use_beam_search' does not go with a 'tool_choice' that asks for a call",
                          ErrorCode::kUnsupported);
  AnswerReading& reading = request.reading;
  reading.reasoning = facts.reasoning_format;
  reading.reasoning_open =
      reading.reasoning != nullptr && is_reasoning_open(*reading.reasoning, conversation.text.text);
  if (tools.may_call()) {
    reading.calls = facts.tool_format;
    reading.tools = tools.tools;
    reading.one_call = !tools.many;
  }
  if ((reading.calls != nullptr && facts.calls_are_special) ||
      (reading.reasoning != nullptr && facts.reasoning_is_special))
    request.sampling.skip_special_tokens = false;
  hold_answer(tools, reading, request.form);
}

void read_chat(JsonFields& fields, const ModelFacts& facts, const Engine& engine, const HeldSession* session,
               CompletionRequest& request) {
  read_chat_logprobs(fields, facts, request);
  fields.refuse("add_special_tokens", "the chat template writes special tokens itself", Json(false));
  for (const std::string_view old : {"functions", "function_call"})
    fields.refuse(old, "say 'tools' and 'tool_choice', which came in its place");
  fields.refuse("modalities", "only text is made", Json(Json::Array{Json("text")}));
  fields.refuse("service_tier", "there is one tier", Json("auto"));
  fields.refuse("echo", "conversations are not repeated", Json(false));
  fields.refuse("best_of", "it belongs to /v1/completions");
  for (const std::string_view name : {"audio", "prediction", "web_search_options", "verbosity", "mm_processor_kwargs"})
    fields.refuse(name, "this server only makes text from text");
  const Result<RenderedConversation> conversation = render_conversation(fields, engine, true, session);
  if (!conversation)
    return fields.problem(conversation.error().param, conversation.error().message, conversation.error().code);
  read_answer(fields, facts, *conversation, request);
  if (!engine.has_tokenizer())
    return fields.problem("messages", "this model has no tokenizer, so it cannot read text; use /v1/completions");
  request.prompts.push_back(conversation->encode(engine));
  if (session != nullptr) cli::drop_repeated_end(request.prompts.back(), session->last_token, engine.eos_token_ids());
  if (request.prompts.back().empty())
    fields.problem("messages", "the conversation gives no tokens; a model needs at least one to go on from");
}

void read_completion(JsonFields& fields, const ModelFacts& facts, const Engine& engine, const HeldSession* session,
                     CompletionRequest& request) {
  int64_t top = 0;
  if (fields.integer("logprobs", 0, facts.max_logprobs, &top)) {
    request.want_logprobs = true;
    request.sampling.logprobs = static_cast<int>(top);
  }
  fields.boolean("echo", &request.echo);
  fields.refuse("suffix", "models that fill a gap are not served");
  const bool goes_on = session != nullptr && session->num_tokens > 0;
  if (goes_on && !fields.has("prompt")) {
    fields.note("prompt");
    request.prompts.emplace_back();  // what was said last is gone on with
  } else {
    read_prompts(fields, "prompt", facts, engine, &request.prompts, request.echo ? &request.prompt_texts : nullptr,
                 !goes_on);
  }
  if (request.echo && request.want_logprobs) {
    if (request.sampling.prompt_logprobs)
      fields.problem("prompt_logprobs",
                     "'echo' with 'logprobs' gives those of the prompt already; leave 'prompt_logprobs' out");
    request.sampling.prompt_logprobs = request.sampling.logprobs;
  }
  if (request.echo && !engine.has_tokenizer()) fields.problem("echo", "'echo' needs a model with a tokenizer");
}

// The session is one text, of which nothing is computed again.
void check_session(JsonFields& fields, const HeldSession& session, CompletionRequest& request) {
  request.held_tokens = session.num_tokens;
  const auto refuse = [&fields](bool asked, std::string_view name, std::string_view why) {
    if (asked)
      fields.problem(name, fmt::format("'{}' does not go with 'session_id': {}", name, why), ErrorCode::kUnsupported);
  };
  refuse(request.n > 1, "n", "a session goes on with one answer; fork it for others");
  refuse(request.best_of > 1, "best_of", "a session goes on with one answer");
  refuse(request.beam_width > 0, "use_beam_search", "a session goes on with one answer");
  refuse(request.prompts.size() > 1, "prompt", "a session is one text");
  refuse(request.echo, "echo", "what the session holds is not told again");
  refuse(request.sampling.prompt_logprobs.has_value(), "prompt_logprobs",
         "what the session holds is not computed again");
  refuse(!request.cache_salt.empty() && session.num_tokens > 0, "cache_salt", "it has the one that it began with");
}

void read_max_tokens(JsonFields& fields, const ModelFacts& facts, bool is_open_ended, CompletionRequest& request) {
  int64_t longest = 0;
  for (const auto& ids : request.prompts) longest = std::max(longest, request.held_tokens + std::ssize(ids));
  const int64_t left = facts.max_model_len - longest;
  int64_t given = 0, newer = 0;
  const bool echoes = request.sampling.prompt_logprobs.has_value();
  const bool has_old = fields.integer("max_tokens", echoes ? 0 : 1, kMaxTokens, &given);
  const bool has_new = request.chat && fields.integer("max_completion_tokens", echoes ? 0 : 1, kMaxTokens, &newer);
  if (!request.chat) fields.refuse("max_completion_tokens", "it belongs to /v1/chat/completions; say 'max_tokens'");
  if (has_new) given = newer;
  if (left <= 0 || ((has_old || has_new) && given > left)) {
    fields.problem(
        request.chat ? "messages" : "prompt",
        fmt::format("this model's maximum context length is {} tokens; the prompt has {}{}; shorten the prompt"
                    " or ask for fewer tokens",
                    facts.max_model_len, longest,
                    has_old || has_new ? fmt::format(" and {} were asked for", given) : ""),
        ErrorCode::kContextLength);
    return;
  }
  const bool model_says = facts.defaults.max_tokens != SamplingParams().max_tokens;
  const int64_t otherwise = model_says ? facts.defaults.max_tokens : is_open_ended ? left : kCompletionTokens;
  request.open_ended = !has_old && !has_new;
  request.sampling.max_tokens = has_old || has_new ? given : std::min(left, otherwise);
}

}  // namespace

int64_t CompletionRequest::answers() const noexcept { return std::ssize(prompts) * std::max({n, best_of, beam_width}); }

Result<Json> parse_body(const std::string& body) {
  if (!is_valid_utf8(body)) return fail(ErrorCode::kInvalidArgument, "the body is not valid UTF-8");
  Result<Json> json = parse_json(body, "the body", {.refuse_duplicate_keys = true});
  if (!json) return fail(ErrorCode::kInvalidArgument, "{}", json.error().message);
  if (!json->is_object())
    return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object, found {}", json->type_name());
  return json;
}

void read_prompts(JsonFields& fields, std::string_view name, const ModelFacts& facts, const Engine& engine,
                  std::vector<std::vector<int32_t>>* prompts, std::vector<std::string>* texts, bool special) {
  const Json* prompt = fields.find(name, R"({"type": ["string", "array", "null"]})");
  fields.boolean("add_special_tokens", &special);
  if (prompt == nullptr)
    return fields.problem(name, fmt::format("'{}' is missing: give a text, token ids, or a list of either", name));
  const std::string expected =
      fmt::format("a text, a list of token ids from 0 to {}, or a list of at most {} of either, none of them empty",
                  facts.vocab_size - 1, facts.max_prompts);
  const auto take = [&](const Json& one) {
    std::vector<int32_t> ids;
    if (one.is_string()) {
      encode_prompt(fields, name, engine, one.as_string(), special, prompts, texts);
    } else if (take_token_ids(one, facts.vocab_size, &ids)) {
      if (texts != nullptr) texts->push_back(engine.has_tokenizer() ? engine.decode(ids, false) : std::string());
      prompts->push_back(std::move(ids));
    } else {
      fields.wrong(name, expected, *prompt);
    }
  };
  const bool many = prompt->is_array() && !prompt->as_array().empty() && !prompt->as_array().front().is_int();
  if (!many) {
    take(*prompt);
  } else if (std::ssize(prompt->as_array()) > facts.max_prompts) {
    fields.wrong(name, expected, *prompt);
  } else {
    for (const Json& one : prompt->as_array()) take(one);
  }
  for (const auto& ids : *prompts)
    if (ids.empty()) fields.wrong(name, expected, *prompt);
}

void check_model(JsonFields& fields, const ModelFacts& facts) {
  std::string name;
  if (!fields.text("model", &name, 1024)) return;
  const auto& names = facts.served_names;
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  fields.problem("model",
                 fmt::format("the model {} does not exist here; served is '{}'",
                             Json(name.substr(0, 80)).dump(-1, true), names.front()),
                 ErrorCode::kNotFound);
}

Result<CompletionRequest> parse_completion(const Json& body, bool chat, const ModelFacts& facts, const Engine& engine,
                                           const HeldSession* session, bool is_open_ended, FieldList* list) {
  JsonFields fields(body, list);
  CompletionRequest request;
  request.chat = chat;
  request.sampling = facts.defaults;
  check_model(fields, facts);
  read_sampling(fields, facts, request.sampling);
  if (!chat) fields.integer("best_of", 1, facts.max_n, &request.best_of);
  read_serving(fields, facts, request);
  read_form(fields, request);
  refuse_others(fields);
  if (chat) {
    read_chat(fields, facts, engine, session, request);
  } else {
    read_completion(fields, facts, engine, session, request);
  }
  fields.text("session_id", &request.session_id, kMaxSaltBytes);
  if (session != nullptr) check_session(fields, *session, request);
  if (request.best_of != 0 && request.best_of < request.n)
    fields.problem("best_of", fmt::format("'best_of' must be at least 'n' = {}, found {}", request.n, request.best_of));
  if (request.stream && request.best_of > request.n)
    fields.problem("best_of", "'best_of' above 'n' cannot be streamed: which answers are best is known at the end");
  if (const int64_t answers = request.answers(); answers > facts.max_answers)
    fields.problem(
        request.best_of > request.n ? "best_of" : "n",
        fmt::format("{} prompts with {} answers each are {} answers; at most {} are made for one request: "
                    "ask in several",
                    request.prompts.size(), answers / std::ssize(request.prompts), answers, facts.max_answers));
  read_max_tokens(fields, facts, is_open_ended, request);
  if (auto failure = fields.finish()) return tl::unexpected(std::move(*failure));
  if (std::string wrong = request.sampling.problems(facts.vocab_size); !wrong.empty())
    return fail(ErrorCode::kInvalidArgument, "{}", wrong);
  return request;
}

}  // namespace coluber::server
