// SPDX-License-Identifier: Apache-2.0
//
// A request that the engine works on, from its body to the end of its answer: checked on a worker, run by the engine,
// answered. What every kind of request has of that is here; a kind says what its body means and what it makes of the
// outputs. Belongs to the thread of the connections, but for `accept`. Lives while the engine or a worker may still
// call it. A client that goes away cancels it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/server/api_error.h"
#include "apps/server/completion_request.h"
#include "apps/server/http_server.h"
#include "apps/server/metrics.h"
#include "apps/server/request_trace.h"
#include "apps/server/session_store.h"
#include "apps/server/work_queue.h"
#include "coluber/async_engine.h"
#include "engine/answer_grammars.h"
#include "text/tokenizer/tokenizer.h"

namespace coluber::server {

// What every job needs; outlives all of them.
struct Serving {
  AsyncEngine& engine;
  HttpServer& http;
  WorkQueue& workers;
  Metrics& metrics;
  SessionStore& sessions;
  const ModelFacts& facts;
  const Tokenizer* tokenizer;  // null where the model has none
  AnswerGrammars* grammars;    // likewise
};

// Who asked, and how they are answered.
struct Caller {
  std::shared_ptr<HttpStream> stream;
  HttpHeaders headers;                       // of every answer
  std::string id;                            // of the request
  std::string owner;                         // whose sessions it may use
  std::shared_ptr<RequestTrace> trace = {};  // null: nobody wants one
};

class Job : public std::enable_shared_from_this<Job> {
 public:
  using OnDone = std::function<void(int status)>;  // called once, when neither client nor engine need it any more
  Job(Serving& serving, Caller caller, OnDone on_done);
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void begin(std::string body);
  // Ends it with an error for the client, if there still is one.
  void end_with(const ApiError& error);

 protected:
  // On a worker: gives the engine what the body asks for, or says what is wrong with it. May throw.
  virtual std::optional<ApiError> accept(const std::string& body) = 0;
  // How the client is told of an error: in an answer, or at the end of a stream that has begun.
  virtual Json error_body(const ApiError& error) const { return error.json(); }
  virtual std::string error_end(const ApiError&) const { return {}; }
  // The stream's client has read what was queued for it.
  virtual void pump() {}
  // Before it is finished with kError or kAbort.
  virtual void ending(FinishReason) {}
  // What is gathered for the answer is not needed any more.
  virtual void forget() = 0;

  template <typename Kind>
  std::shared_ptr<Kind> self() {
    return std::static_pointer_cast<Kind>(shared_from_this());
  }
  // `add(i)` for each of `count` requests to the engine, until the client goes away; all or none.
  std::vector<RequestId> add_all(size_t count, const std::function<RequestId(size_t)>& add);
  // The engine has them. False where nobody wants them any more.
  bool take_ids(std::vector<RequestId> ids);
  // Whether the output ended the job with an error.
  bool failed(const RequestOutput& output);
  void respond(int status, const Json& body, HttpHeaders more = {});
  void finish(int status);

  Serving& serving_;
  const std::shared_ptr<HttpStream> stream_;
  const HttpHeaders headers_;
  const std::string owner_;
  const std::shared_ptr<RequestTrace> trace_;
  bool done_ = false;

 private:
  void prepare(const std::string& body);
  void cancel();
  void abort_requests();

  OnDone on_done_;
  std::vector<RequestId> ids_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace coluber::server
