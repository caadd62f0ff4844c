// SPDX-License-Identifier: Apache-2.0
//
// The table of routes: what is called for which path, and what /openapi.json says of it. Bodies are described by their
// own readers, so that a field cannot be read and not told, or told and not read.

#include "apps/server/embedding_job.h"
#include "apps/server/foreign_dialect.h"
#include "apps/server/service.h"
#include "apps/server/service_call.h"
#include "apps/server/session_job.h"
#include "apps/server/small_bodies.h"
#include "base/ascii.h"

namespace coluber::server {
namespace {

const Json kNothing = Json(Json::Object{});

template <auto kRead>
Json body(const ModelFacts& facts, const Engine& engine) {
  FieldList list;
  JsonFields fields(kNothing, &list);
  (void)kRead(fields, facts, engine);
  return list.schema();
}

template <auto kDialect>
Json generation(const ModelFacts& facts, const Engine& engine) {
  const std::unique_ptr<Dialect> dialect = kDialect();
  FieldList own, passed;
  (void)dialect->translate(kNothing, &own);
  (void)parse_completion(kNothing, dialect->is_chat(), facts, engine, nullptr, false, &passed);
  return own.all().empty() ? passed.schema() : own.schema(&passed);
}

Json counted(const ModelFacts& facts, const Engine& engine) {
  FieldList own, passed;
  (void)anthropic_conversation(kNothing, &own);
  JsonFields fields(kNothing, &passed);
  (void)count_tokens(fields, facts, engine);
  return own.schema(&passed);
}

Json no_fields(const ModelFacts&, const Engine&) { return FieldList().schema(); }

constexpr std::string_view kJson = "application/json", kLines = "application/x-ndjson",
                           kEvents = "text/event-stream; charset=utf-8",
                           kMetrics = "text/plain; version=0.0.4; charset=utf-8";

bool matches(std::string_view pattern, std::string_view path, std::string* argument) {
  const size_t open = pattern.find('{');
  if (open == std::string_view::npos) return path == pattern;
  const size_t close = pattern.find('}');
  const std::string_view before = pattern.substr(0, open), behind = pattern.substr(close + 1);
  if (path.size() <= before.size() + behind.size() || !path.starts_with(before) || !path.ends_with(behind))
    return false;
  const std::string_view given = path.substr(before.size(), path.size() - before.size() - behind.size());
  if (pattern[close - 1] != '*' && given.find('/') != std::string_view::npos) return false;
  *argument = given;
  return true;
}

}  // namespace

// {name} stands for one segment, {name*} for all that follows. What has no summary is no part of the API.
const Service::Route Service::kRoutes[] = {
    {"GET", "/", &Service::get_page, true, {}},
    {"GET", "/page/{file}", &Service::get_page, true, {}},
    {"GET", "/openapi.json", &Service::get_openapi, true, "this description"},
    {"GET", "/health", &Service::get_health, true, "whether the process serves"},
    {"GET", "/ready", &Service::get_ready, true, "whether new requests are taken"},
    {"GET", "/version", &Service::get_version, true, "the version of the program"},
    {"GET", "/metrics", &Service::get_metrics, true, "what Prometheus reads", nullptr, kMetrics},
    {"GET", "/v1/models", &Service::get_models, false, "what is served"},
    {"GET", "/v1/models/{model*}", &Service::get_model, false, "one of them"},
    {"POST", "/v1/completions", &Service::post_completions, false, "goes on from prompts",
     generation<openai_completions>, kJson, kEvents},
    {"POST", "/v1/chat/completions", &Service::post_chat_completions, false, "answers a conversation",
     generation<openai_chat>, kJson, kEvents},
    {"POST", "/v1/responses", &Service::post_responses, false, "answers a conversation that is kept",
     generation<openai_responses>, kJson, kEvents},
    {"GET", "/v1/responses/{id}", &Service::get_response, false, "a response again"},
    {"DELETE", "/v1/responses/{id}", &Service::delete_response, false, "ends what a response left behind"},
    {"POST", "/v1/messages", &Service::post_messages, false, "answers a conversation, in Anthropic's words",
     generation<anthropic_messages>, kJson, kEvents, anthropic_error},
    {"POST",
     "/v1/messages/count_tokens",
     &Service::post_count_tokens,
     false,
     "tokens of a conversation, likewise",
     counted,
     kJson,
     {},
     anthropic_error},
    {"POST", "/api/chat", &Service::post_ollama_chat, false, "answers a conversation, in Ollama's words",
     generation<ollama_chat>, kJson, kLines, ollama_error},
    {"POST", "/api/generate", &Service::post_ollama_generate, false, "goes on from a prompt, in Ollama's words",
     generation<ollama_generate>, kJson, kLines, ollama_error},
    {"GET",
     "/api/tags",
     &Service::get_ollama_tags,
     false,
     "what is served, in Ollama's words",
     nullptr,
     kJson,
     {},
     ollama_error},
    {"GET", "/api/version", &Service::get_version, true, "the version, where Ollama's clients look for it"},
    {"POST", "/v1/embeddings", &Service::post_embeddings, false, "hidden states, pooled", body<EmbeddingJob::describe>},
    {"POST", "/v1/sessions", &Service::post_sessions, false, "begins a session", body<SessionJob::describe>},
    {"GET", "/v1/sessions", &Service::get_sessions, false, "the sessions that there are"},
    {"GET", "/v1/sessions/{id}", &Service::get_session, false, "one of them"},
    {"DELETE", "/v1/sessions/{id}", &Service::delete_session, false, "ends it"},
    {"POST", "/v1/sessions/{id}/fork", &Service::fork_session, false, "another session at the same place", no_fields},
    {"POST", "/v1/sessions/{id}/rollback", &Service::roll_session_back, false, "back to its first tokens",
     body<read_rollback>},
    {"POST", "/v1/sessions/{id}/save", &Service::save_session, false, "into a file", body<read_save>},
    {"POST", "/tokenize", &Service::post_tokenize, false, "text to tokens", body<read_tokenize>},
    {"POST", "/detokenize", &Service::post_detokenize, false, "tokens to text", body<read_detokenize>},
};

const Service::Route* Service::find_route(Call& call) {
  std::string allowed;
  const std::string_view method = call.request.method == "HEAD" ? "GET" : std::string_view(call.request.method);
  for (const Route& route : kRoutes) {
    if (!matches(route.path, call.request.path, &call.argument)) continue;
    call.route = route.path;
    call.error_body = route.error_body;
    if (route.method == method) return &route;
    allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", route.method);
  }
  if (allowed.empty()) {
    answer_error(call, api_error(404, "there is no such route; docs/api.md lists them", "not_found"));
  } else {
    call.headers.emplace_back("Allow", allowed);
    answer_error(call, api_error(405, fmt::format("this route takes {}", allowed), "method_not_allowed"));
  }
  return nullptr;
}

// ---- /openapi.json ---------------------------------------------------------------------------------------------

Json Service::described(const Route& route) const {
  Json content = Json(Json::Object{});
  for (const std::string_view type : {route.type, route.stream_type})
    if (!type.empty()) content.set(std::string(type), kNothing);
  Json operation(Json::Object{
      {"summary", route.summary},
      {"responses", Json::Object{{"200", Json::Object{{"description", "done"}, {"content", std::move(content)}}},
                                 {"default", Json::Object{{"description", "an error; docs/api.md lists them"}}}}}});
  if (const size_t open = route.path.find('{'); open != std::string_view::npos) {
    const size_t length = route.path.find_first_of("*}", open) - open - 1;
    operation.set("parameters", Json::Array{Json(Json::Object{{"name", route.path.substr(open + 1, length)},
                                                              {"in", "path"},
                                                              {"required", true},
                                                              {"schema", Json::Object{{"type", "string"}}}})});
  }
  if (route.body != nullptr)
    operation.set(
        "requestBody",
        Json::Object{{"content", Json::Object{{std::string(kJson),
                                               Json::Object{{"schema", route.body(facts_, engine_->engine())}}}}}});
  if (route.is_open) operation.set("security", Json::Array{});
  return operation;
}

Json Service::openapi() const {
  Json paths = kNothing;
  for (const Route& route : kRoutes) {
    if (route.summary.empty()) continue;
    std::string path(route.path);
    std::erase(path, '*');
    const std::string method = ascii::lower(route.method);
    Json operations = paths.find(path) != nullptr ? paths.at(path) : kNothing;
    operations.set(method, described(route));
    paths.set(path, std::move(operations));
  }
  Json json(Json::Object{{"openapi", "3.1.0"},
                         {"info", Json::Object{{"title", "Coluber"}, {"version", COLUBER_VERSION}}},
                         {"paths", std::move(paths)}});
  if (options_.api_keys.empty()) return json;
  json.set("components", Json::Object{{"securitySchemes",
                                       Json::Object{{"key", Json::Object{{"type", "http"}, {"scheme", "bearer"}}}}}});
  json.set("security", Json::Array{Json(Json::Object{{"key", Json::Array{}}})});
  return json;
}

void Service::get_openapi(const std::shared_ptr<Call>& call) { answer(*call, 200, openapi_); }

}  // namespace coluber::server
