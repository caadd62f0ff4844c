// SPDX-License-Identifier: Apache-2.0
//
// What an Engine is made of; its sessions use the same parts. Private to the engine folder.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "coluber/engine.h"
#include "engine/generation.h"
#include "engine/load.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/state_cache.h"

namespace coluber {

struct Engine::Impl {
  Impl(const EngineOptions& options, LoadedModel loaded);

  struct ActiveRequest {
    std::unique_ptr<Sequence> sequence;
    int64_t max_total_tokens = 0;  // prompt and output
    Generation generation;
    int64_t prompt_tokens = 0;
  };

  uint64_t next_seed(const SamplingParams& params);
  RequestId add_request(Request request);
  std::vector<RequestOutput> step();
  RequestOutput advance(RequestId id, std::span<const float> logits);
  void end_request(RequestId id);
  // Ends the plan's requests after a fault of ours; their states are gone, the others go on.
  std::vector<RequestOutput> fail_step(ErrorCode code, const std::string& message);
  std::optional<RequestOutput> fail_stuck_request();

  EngineOptions options;
  LoadedModel loaded;
  std::unique_ptr<StateCache> cache;
  std::unique_ptr<Runner> runner;
  Scheduler scheduler;
  std::map<RequestId, ActiveRequest> requests;
  RequestId next_id = 1;
  uint64_t seed_counter = 0;
  StepPlan plan;
  std::vector<int64_t> plan_ids;
};

}  // namespace coluber
