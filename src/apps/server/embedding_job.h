// SPDX-License-Identifier: Apache-2.0
//
// One request for /v1/embeddings: its inputs run as prompts without an answer, and the pooled hidden states come back,
// each of length one. Threads and life are those of Job.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/server/job.h"

namespace coluber::server {

class EmbeddingJob : public Job {
 public:
  using Job::Job;
  // Asks for every field that a body may have.
  static void describe(JsonFields& fields, const ModelFacts& facts, const Engine& engine) {
    (void)read(fields, facts, engine);
  }

 private:
  struct Wanted {
    std::vector<std::vector<int32_t>> inputs;
    Pooling pooling = Pooling::kLast;
    int64_t dimensions = 0;  // 0: all
    bool base64 = false;
    int64_t priority = 0;
    std::string cache_salt;
  };

  std::optional<ApiError> accept(const std::string& body) override;
  void forget() override { early_.clear(); }
  static Result<Wanted> read(JsonFields& fields, const ModelFacts& facts, const Engine& engine);
  RequestId add(const Wanted& wanted, size_t input);
  void started(std::shared_ptr<const Wanted> wanted, std::vector<RequestId> ids);
  void take(size_t input, RequestOutput output);
  void complete();

  std::shared_ptr<const Wanted> wanted_;
  std::vector<std::pair<size_t, RequestOutput>> early_;  // came before `wanted_` did
  std::vector<std::vector<float>> embeddings_;
  size_t ended_ = 0;
};

}  // namespace coluber::server
