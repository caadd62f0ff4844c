// SPDX-License-Identifier: Apache-2.0
//
// One request for text, from its body to the end of its answer: checked on a worker, run by the engine, answered whole
// or as a stream. Belongs to the thread of the connections, but for `prepare`. Lives while the engine or a worker may
// still call it. A client that goes away cancels it; one that reads slowly makes its chunks larger, not its memory.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/server/api_error.h"
#include "apps/server/completion_request.h"
#include "apps/server/completion_response.h"
#include "apps/server/http_server.h"
#include "apps/server/metrics.h"
#include "apps/server/work_queue.h"
#include "coluber/async_engine.h"

namespace coluber::server {

// What every job needs; outlives all of them.
struct Serving {
  AsyncEngine& engine;
  HttpServer& http;
  WorkQueue& workers;
  Metrics& metrics;
  const ModelFacts& facts;
  const Tokenizer* tokenizer;  // null where the model has none
};

// A request that the engine works on.
class Job {
 public:
  using OnDone = std::function<void(int status)>;  // called once, when neither client nor engine need it any more
  virtual ~Job() = default;
  virtual void begin(std::string body) = 0;
  // Ends it with an error for the client, if there still is one.
  virtual void end_with(const ApiError& error) = 0;
};

class GenerationJob : public Job, public std::enable_shared_from_this<GenerationJob> {
 public:
  // `headers` stand in every answer.
  GenerationJob(Serving& serving, std::shared_ptr<HttpStream> stream, bool chat, std::string id, HttpHeaders headers,
                OnDone on_done);

  void begin(std::string body) override;
  void end_with(const ApiError& error) override;

 private:
  using Clock = std::chrono::steady_clock;

  void prepare(const std::string& body);  // on a worker
  void submit(std::shared_ptr<CompletionRequest> request);
  RequestId add(const CompletionRequest& request, size_t prompt);
  Request engine_request(const CompletionRequest& request, size_t prompt) const;
  void started(std::shared_ptr<CompletionRequest> request, std::vector<RequestId> ids);
  void take(size_t prompt, RequestOutput output);
  void pump();
  void handle(size_t prompt, RequestOutput& output);
  void count(size_t prompt, const RequestOutput& output);
  void send_chunk(Choice& choice, RequestOutput& output);
  void send_event(const Json& json);
  void complete();
  void cancel();
  void abort_requests();
  void finish(int status);
  Usage usage() const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

  Serving& serving_;
  std::shared_ptr<HttpStream> stream_;
  const bool chat_;
  AnswerHead head_;
  HttpHeaders headers_;
  OnDone on_done_;
  Clock::time_point begun_ = Clock::now(), last_token_;
  bool had_token_ = false;

  std::shared_ptr<const CompletionRequest> request_;  // null until the engine has it
  std::vector<RequestId> ids_;
  std::deque<std::pair<size_t, RequestOutput>> pending_;  // given by the engine and not yet handled
  std::vector<Choice> choices_;
  std::vector<bool> chunked_;  // choices that had a first chunk
  std::vector<int64_t> completion_tokens_;
  std::vector<Usage> prompts_;
  std::vector<std::vector<TokenOutput>> prompt_logprobs_;  // of prompts with several answers to repeat them in
  size_t ended_ = 0;                                       // prompts
  bool done_ = false;
  std::atomic<bool> cancelled_{false};
};

}  // namespace coluber::server
