// SPDX-License-Identifier: Apache-2.0
//
// The routes of /v1/sessions. What they do is session_store.h's.
#include "apps/server/json_fields.h"
#include "apps/server/service.h"
#include "apps/server/service_call.h"
#include "apps/server/session_job.h"
#include "apps/server/small_bodies.h"
#include "cache/state_tag.h"

namespace coluber::server {
namespace {

ApiResult<std::string> text_of(const ApiResult<Json>& json) {
  if (!json) return tl::unexpected(json.error());
  return json->dump();
}

}  // namespace

// A key's sessions are its own; nobody can tell the key from the name.
std::string Service::owner_of(const Call& call) {
  return call.key.empty() ? std::string() : hash_text(call.key).to_string();
}

void Service::post_sessions(const std::shared_ptr<Call>& call) {
  start_job(call, [this](Caller caller, Job::OnDone on_done) {
    return std::make_shared<SessionJob>(*serving_, std::move(caller), std::move(on_done));
  });
}

void Service::get_response(const std::shared_ptr<Call>& call) {
  answer_on_worker(call, [this, call]() -> ApiResult<std::string> {
    const ApiResult<Json> note = sessions_->note(owner_of(*call), call->argument);
    if (!note) return tl::unexpected(note.error());
    const Json* response = note->find("response");
    if (response == nullptr) return tl::unexpected(api_error(404, "there is no such response", "not_found"));
    return response->dump();
  });
}

void Service::delete_response(const std::shared_ptr<Call>& call) {
  answer_on_worker(call, [this, call]() -> ApiResult<std::string> {
    ApiResult<Json> ended = sessions_->end(owner_of(*call), call->argument);
    if (!ended) return tl::unexpected(ended.error());
    ended->set("object", "response.deleted");
    return ended->dump();
  });
}

void Service::get_sessions(const std::shared_ptr<Call>& call) {
  answer_on_worker(call, [this, call]() -> ApiResult<std::string> { return sessions_->list(owner_of(*call)).dump(); });
}

void Service::get_session(const std::shared_ptr<Call>& call) {
  answer_on_worker(call, [this, call] { return text_of(sessions_->describe(owner_of(*call), call->argument)); });
}

void Service::delete_session(const std::shared_ptr<Call>& call) {
  answer_on_worker(call, [this, call] { return text_of(sessions_->end(owner_of(*call), call->argument)); });
}

void Service::fork_session(const std::shared_ptr<Call>& call) {
  answer_with_fields(call, [this, call](JsonFields& fields) -> ApiResult<std::string> {
    if (auto failure = fields.finish()) return tl::unexpected(api_error(*failure));
    const SessionStore::LeaseResult fork = sessions_->fork(owner_of(*call), call->argument, SessionKind::kSession);
    if (!fork) return tl::unexpected(fork.error());
    return sessions_->describe(**fork).dump();
  });
}

void Service::roll_session_back(const std::shared_ptr<Call>& call) {
  answer_with_fields(call, [this, call](JsonFields& fields) -> ApiResult<std::string> {
    const int64_t tokens = read_rollback(fields, facts_, engine_->engine()).tokens;
    if (auto failure = fields.finish()) return tl::unexpected(api_error(*failure));
    const SessionStore::LeaseResult lease = sessions_->lend(owner_of(*call), call->argument);
    if (!lease) return tl::unexpected(lease.error());
    return text_of(sessions_->roll_back(**lease, tokens));
  });
}

void Service::save_session(const std::shared_ptr<Call>& call) {
  answer_with_fields(call, [this, call](JsonFields& fields) -> ApiResult<std::string> {
    const SaveBody body = read_save(fields, facts_, engine_->engine());
    if (auto failure = fields.finish()) return tl::unexpected(api_error(*failure));
    const SessionStore::LeaseResult lease = sessions_->lend(owner_of(*call), call->argument);
    if (!lease) return tl::unexpected(lease.error());
    return text_of(sessions_->save(**lease, body.has_file ? body.file : call->argument));
  });
}

}  // namespace coluber::server
