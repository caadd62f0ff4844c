// SPDX-License-Identifier: Apache-2.0
//
// One request for text, answered whole or as a stream. A client that reads slowly makes its chunks larger, not its
// memory. Threads and life are those of Job.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/server/completion_response.h"
#include "apps/server/job.h"

namespace coluber::server {

class GenerationJob : public Job {
 public:
  GenerationJob(Serving& serving, std::shared_ptr<HttpStream> stream, bool chat, std::string id, HttpHeaders headers,
                OnDone on_done);

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<Failure> accept(const std::string& body) override;
  void pump() override;
  void ending(FinishReason reason) override;
  void forget() override { pending_.clear(); }
  RequestId add(const CompletionRequest& request, size_t prompt);
  Request engine_request(const CompletionRequest& request, size_t prompt) const;
  void started(std::shared_ptr<CompletionRequest> request, std::vector<RequestId> ids);
  void take(size_t prompt, RequestOutput output);
  void handle(size_t prompt, RequestOutput& output);
  void count(size_t prompt, const RequestOutput& output);
  void send_chunk(Choice& choice, RequestOutput& output);
  void complete();
  Usage usage() const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

  const bool chat_;
  AnswerHead head_;
  Clock::time_point begun_ = Clock::now(), last_token_;
  bool had_token_ = false;

  std::shared_ptr<const CompletionRequest> request_;      // null until the engine has it
  std::deque<std::pair<size_t, RequestOutput>> pending_;  // given by the engine and not yet handled
  std::vector<Choice> choices_;
  std::vector<bool> chunked_;  // choices that had a first chunk
  std::vector<int64_t> completion_tokens_;
  std::vector<Usage> prompts_;
  std::vector<std::vector<TokenOutput>> prompt_logprobs_;  // of prompts with several answers to repeat them in
  size_t ended_ = 0;                                       // prompts
};

}  // namespace coluber::server
