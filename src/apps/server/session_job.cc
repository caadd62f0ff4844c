// SPDX-License-Identifier: Apache-2.0
#include "apps/server/session_job.h"

#include <limits>
#include <utility>

#include "apps/server/json_fields.h"

namespace coluber::server {
namespace {

constexpr size_t kMaxNameBytes = 256;

}  // namespace

Result<SessionJob::Wanted> SessionJob::read(JsonFields& fields, const ModelFacts& facts, const Engine& engine) {
  Wanted wanted;
  check_model(fields, facts);
  int sources = 0;
  for (const std::string_view name : {"prompt", "messages", "session", "file"}) sources += fields.has(name) ? 1 : 0;
  if (sources > 1)
    fields.problem("prompt", "a session begins with one of 'prompt', 'messages', 'session' and 'file', or with none");
  std::string name;
  if (fields.text("session", &name, kMaxNameBytes)) wanted.from_session = name;
  if (fields.text("file", &name, kMaxNameBytes)) wanted.from_file = name;
  fields.text("cache_salt", &wanted.cache_salt, kMaxNameBytes);
  fields.integer("priority", std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                 &wanted.priority);
  std::vector<std::vector<int32_t>> prompts;
  std::string_view source = "prompt";
  if (fields.has("messages") || fields.is_described()) {
    source = "messages";
    const Result<RenderedConversation> text = render_conversation(fields, engine, false);
    if (text) prompts.push_back(text->encode(engine));
    if (text) wanted.opening = *read_messages(fields);
    if (!text) fields.problem(text.error().param, text.error().message, text.error().code);
  }
  if (fields.has("prompt") || fields.is_described()) read_prompts(fields, "prompt", facts, engine, &prompts, nullptr);
  if (prompts.size() > 1) fields.problem("prompt", "'prompt' must be one text or one list of token ids");
  if (auto failure = fields.finish()) return tl::unexpected(std::move(*failure));
  if (!prompts.empty()) wanted.ids = std::move(prompts.front());
  if (std::ssize(wanted.ids) >= facts.max_model_len)
    return tl::unexpected(Failure{
        ErrorCode::kContextLength,
        fmt::format(
            "this model's maximum context length is {} tokens and '{}' has {}; there must be room for an answer",
            facts.max_model_len, source, wanted.ids.size()),
        std::string(source)});
  return wanted;
}

ApiResult<std::shared_ptr<SessionStore::Lease>> SessionJob::make(const Wanted& wanted) {
  if (wanted.from_session) return serving_.sessions.fork(owner_, *wanted.from_session, SessionKind::kSession);
  if (wanted.from_file) return serving_.sessions.load(owner_, *wanted.from_file);
  return serving_.sessions.create(owner_, SessionKind::kSession);
}

std::optional<ApiError> SessionJob::accept(const std::string& body) {
  const Result<Json> json = parse_body(body.empty() ? "{}" : body);
  if (!json) return api_error(json.error());
  JsonFields fields(*json);
  Result<Wanted> wanted = read(fields, serving_.facts, serving_.engine.engine());
  if (!wanted) return api_error(wanted.error());
  ApiResult<std::shared_ptr<Lease>> made = make(*wanted);
  if (!made) return std::move(made.error());
  Lease& lease = **made;
  if (wanted->opening.is_array()) lease.note().set("opening", std::move(wanted->opening));
  if (wanted->ids.size() == 1) serving_.sessions.set_pending(lease, wanted->ids.front());
  if (wanted->ids.size() <= 1) {
    Json session = serving_.sessions.describe(lease);
    lease.release();
    serving_.http.post([job = self<SessionJob>(), session = std::move(session)] { job->tell(session); });
    return std::nullopt;
  }
  std::vector<RequestId> ids;
  try {
    ids = add_prompt(*wanted, *made);
  } catch (...) {
    serving_.sessions.discard(lease);
    throw;
  }
  if (ids.empty()) serving_.sessions.discard(lease);
  serving_.http.post([job = self<SessionJob>(), ids = std::move(ids)] { job->take_ids(ids); });
  return std::nullopt;
}

// All but the last token: an answer needs one to go on from.
std::vector<RequestId> SessionJob::add_prompt(const Wanted& wanted, const std::shared_ptr<Lease>& lease) {
  Request request;
  request.prompt_ids.assign(wanted.ids.begin(), wanted.ids.end() - 1);
  request.pooling = Pooling::kLast;
  request.priority = wanted.priority;
  request.cache_salt = wanted.cache_salt;
  request.session = lease->session();
  const auto on_output = [job = self<SessionJob>(), lease, last = wanted.ids.back()](const RequestOutput& output) {
    if (output.finish_reason != FinishReason::kNone) job->ended(*lease, output, last);
  };
  return add_all(1, [&](size_t) { return serving_.engine.add_request(request, on_output); });
}

void SessionJob::ended(Lease& lease, const RequestOutput& output, int32_t last_token) {
  if (output.finish_reason != FinishReason::kStop) {
    serving_.sessions.discard(lease);
    serving_.http.post([job = self<SessionJob>(), output] {
      if (!job->done_) job->failed(output);
    });
    return;
  }
  serving_.sessions.set_pending(lease, last_token);
  Json session = serving_.sessions.describe(lease);
  lease.release();
  session.set("cached_tokens", output.cached_tokens);
  serving_.http.post([job = self<SessionJob>(), session = std::move(session)] { job->tell(session); });
}

void SessionJob::tell(const Json& session) {
  if (done_) return;
  respond(200, session);
  finish(200);
}

}  // namespace coluber::server
