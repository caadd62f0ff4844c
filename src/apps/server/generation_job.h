// SPDX-License-Identifier: Apache-2.0
//
// One request for text, answered whole or as a stream. A client that reads slowly makes its chunks larger, not its
// memory. Threads and life are those of Job.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/server/dialect.h"
#include "apps/server/job.h"

namespace coluber::server {

class GenerationJob : public Job {
 public:
  GenerationJob(Serving& serving, Caller caller, std::unique_ptr<Dialect> dialect, OnDone on_done);

 private:
  std::optional<ApiError> accept(const std::string& body) override;
  Json error_body(const ApiError& error) const override { return dialect_->error(error); }
  std::string error_end(const ApiError& error) const override { return dialect_->error_end(error); }
  void pump() override;
  void ending(FinishReason reason) override;
  void forget() override { pending_.clear(); }
  using Lease = SessionStore::Lease;
  ApiResult<std::shared_ptr<Lease>> find_session(Json& body);
  // Compiles what the answer is held to.
  std::optional<Failure> hold_to_form(CompletionRequest& request) const;
  // The engine has given the session back.
  void session_ended(Lease& lease, FinishReason reason);
  RequestId add(const CompletionRequest& request, size_t prompt, const std::shared_ptr<Lease>& lease);
  Request engine_request(const CompletionRequest& request, size_t prompt) const;
  void started(std::shared_ptr<CompletionRequest> request, std::shared_ptr<Lease> kept, std::vector<RequestId> ids);
  void added(const CompletionRequest& request, RequestTimes::Clock::time_point at);
  void told(FinishReason reason);
  void take(size_t prompt, RequestOutput output);
  void handle(size_t prompt, RequestOutput& output);
  void count(size_t prompt, const RequestOutput& output);
  void send_chunk(Choice& choice, RequestOutput& output, AnswerDelta delta);
  void complete();
  Usage usage() const;

  const std::unique_ptr<Dialect> dialect_;
  AnswerHead head_;
  SessionUse session_use_;
  std::shared_ptr<Lease> kept_;  // what the answer leaves behind to be gone on from; null where nothing
  RequestTimes times_;

  std::shared_ptr<const CompletionRequest> request_;      // null until the engine has it
  std::deque<std::pair<size_t, RequestOutput>> pending_;  // given by the engine and not yet handled
  std::vector<Choice> choices_;
  std::vector<AnswerReader> readers_;  // one a choice; none where answers are text and nothing else
  std::vector<bool> chunked_;          // choices that had a first chunk
  std::vector<int64_t> completion_tokens_;
  std::vector<Usage> prompts_;
  std::vector<std::vector<TokenOutput>> prompt_logprobs_;  // of prompts with several answers to repeat them in
  size_t ended_ = 0;                                       // prompts
};

}  // namespace coluber::server
