// SPDX-License-Identifier: Apache-2.0
//
// One request for POST /v1/sessions: a new session, from a prompt or messages that are read here, from another
// session, from a saved file, or from nothing. Threads and life are those of Job.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/server/job.h"

namespace coluber::server {

class SessionJob : public Job {
 public:
  using Job::Job;
  // Asks for every field that a body may have.
  static void describe(JsonFields& fields, const ModelFacts& facts, const Engine& engine) {
    (void)read(fields, facts, engine);
  }

 private:
  using Lease = SessionStore::Lease;
  struct Wanted {
    std::vector<int32_t> ids;
    Json opening;  // the messages that `ids` are
    std::optional<std::string> from_session, from_file;
    std::string cache_salt;
    int64_t priority = 0;
  };

  std::optional<ApiError> accept(const std::string& body) override;
  void forget() override {}
  static Result<Wanted> read(JsonFields& fields, const ModelFacts& facts, const Engine& engine);
  ApiResult<std::shared_ptr<Lease>> make(const Wanted& wanted);
  std::vector<RequestId> add_prompt(const Wanted& wanted, const std::shared_ptr<Lease>& lease);
  // On the engine's thread: the prompt has been read, or not.
  void ended(Lease& lease, const RequestOutput& output, int32_t last_token);
  void tell(const Json& session);
};

}  // namespace coluber::server
