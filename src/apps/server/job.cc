// SPDX-License-Identifier: Apache-2.0
#include "apps/server/job.h"

#include <utility>

namespace coluber::server {
namespace {

constexpr int kClientGone = 499;  // as nginx logs it; nobody reads it

}  // namespace

Job::Job(Serving& serving, Caller caller, OnDone on_done)
    : serving_(serving),
      stream_(std::move(caller.stream)),
      headers_(std::move(caller.headers)),
      owner_(std::move(caller.owner)),
      trace_(std::move(caller.trace)),
      on_done_(std::move(on_done)) {}

// ---- going in --------------------------------------------------------------------------------------------------

void Job::begin(std::string body) {
  stream_->on_close([job = shared_from_this()] { job->cancel(); });
  stream_->on_drain([job = shared_from_this()] { job->pump(); });
  serving_.workers.push([job = shared_from_this(), body = std::move(body)] { job->prepare(body); });
}

void Job::prepare(const std::string& body) {
  if (cancelled_) return;
  std::optional<ApiError> error;
  try {
    error = accept(body);
  } catch (const std::exception& thrown) {
    error = api_error(thrown);
  }
  if (error) serving_.http.post([job = shared_from_this(), error = std::move(*error)] { job->end_with(error); });
}

std::vector<RequestId> Job::add_all(size_t count, const std::function<RequestId(size_t)>& add) {
  std::vector<RequestId> ids;
  try {
    for (size_t i = 0; i < count && !cancelled_; ++i) ids.push_back(add(i));
  } catch (...) {
    for (const RequestId id : ids) serving_.engine.abort(id);
    throw;
  }
  return ids;
}

bool Job::take_ids(std::vector<RequestId> ids) {
  ids_ = std::move(ids);
  if (done_) abort_requests();
  return !done_;
}

// ---- coming out ------------------------------------------------------------------------------------------------

bool Job::failed(const RequestOutput& output) {
  if (output.finish_reason == FinishReason::kError)
    end_with(api_error(Failure{output.error_code, output.error, {}}));
  else if (output.finish_reason == FinishReason::kAbort)
    end_with(api_error(503, "the request was stopped by the server", "cancelled"));
  else
    return false;
  return true;
}

void Job::respond(int status, const Json& body, HttpHeaders more) {
  HttpHeaders headers = headers_;
  headers.emplace_back("Content-Type", "application/json");
  headers.insert(headers.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  stream_->respond(status, headers, body.dump());
}

// ---- ending early ----------------------------------------------------------------------------------------------

void Job::end_with(const ApiError& error) {
  if (done_) return;
  cancelled_ = true;
  abort_requests();
  if (trace_) trace_->set("error.type", error.code);
  if (stream_->started()) {
    stream_->write(error_end(error));
    stream_->end();
  } else {
    const bool may_come_back = error.status == 429 || error.status == 503;
    respond(error.status, error_body(error), may_come_back ? HttpHeaders{{"Retry-After", "1"}} : HttpHeaders{});
  }
  ending(FinishReason::kError);
  finish(error.status);
}

void Job::cancel() {
  if (done_) return;
  cancelled_ = true;
  abort_requests();
  ending(FinishReason::kAbort);
  finish(kClientGone);
}

void Job::abort_requests() {
  if (ids_.empty()) return;
  // The engine's lock may be held for a whole step.
  serving_.workers.push_urgent([&engine = serving_.engine, ids = std::move(ids_)] {
    for (const RequestId id : ids) engine.abort(id);
  });
  ids_.clear();
}

void Job::finish(int status) {
  done_ = true;
  forget();
  // The stream holds callbacks that hold this job.
  stream_->on_close(nullptr);
  stream_->on_drain(nullptr);
  if (const OnDone done = std::move(on_done_)) done(status);
}

}  // namespace coluber::server
