// SPDX-License-Identifier: Apache-2.0
//
// One request for /v1/embeddings: its inputs run as prompts without an answer, and the pooled hidden states come back,
// each of length one. Threads and life as those of GenerationJob.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "apps/server/generation_job.h"

namespace coluber::server {

class EmbeddingJob : public Job, public std::enable_shared_from_this<EmbeddingJob> {
 public:
  EmbeddingJob(Serving& serving, std::shared_ptr<HttpStream> stream, HttpHeaders headers, OnDone on_done);
  void begin(std::string body) override;
  void end_with(const ApiError& error) override;

 private:
  struct Wanted {
    std::vector<std::vector<int32_t>> inputs;
    Pooling pooling = Pooling::kLast;
    int64_t dimensions = 0;  // 0: all
    bool base64 = false;
    int64_t priority = 0;
    std::string cache_salt;
  };

  void prepare(const std::string& body);  // on a worker
  Result<Wanted> parse(const std::string& body) const;
  void submit(std::shared_ptr<Wanted> wanted);
  void take(size_t input, RequestOutput output);
  void complete();
  void abort_requests();
  void finish(int status);

  Serving& serving_;
  std::shared_ptr<HttpStream> stream_;
  HttpHeaders headers_;
  OnDone on_done_;
  std::shared_ptr<const Wanted> wanted_;
  std::vector<RequestId> ids_;
  std::vector<std::pair<size_t, RequestOutput>> early_;  // came before `wanted_` did
  std::vector<std::vector<float>> embeddings_;
  size_t ended_ = 0;
  bool done_ = false;
  std::atomic<bool> cancelled_{false};
};

}  // namespace coluber::server
