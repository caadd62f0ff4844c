// SPDX-License-Identifier: Apache-2.0
//
// The engine's scheduler, prefix tree and pools at work on requests, with a model that computes nothing and memory that
// is not there: a step takes the time that a linear cost model says. All that a request is asked for is decided by the
// code that decides it in the engine (engine/scheduler.h, engine/state_cache.h). One thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "apps/cli/sim_series.h"
#include "apps/cli/sim_trace.h"
#include "coluber/engine.h"
#include "engine/scheduler.h"
#include "engine/state_cache.h"

namespace coluber::cli {

struct SimModel {
  int64_t state_bytes = 0;                              // of one sequence; 0: no recurrent layers
  int64_t kv_bytes_per_token = 0;                       // 0: no attention layers
  std::optional<int64_t> prefill_checkpoint_alignment;  // none: a chunk ends where a state is kept
  double step_us = 0.0;                                 // of every step: the weights are read once
  double prefill_us = 0.0;                              // of a token of a prompt
  double decode_us = 0.0;                               // of a sequence that gets a token
  double context_us = 0.0;                              // of a thousand tokens before it
  double copy_gbps = 10.0;                              // states and pages that are copied
};

struct SimResult {
  int64_t requests = 0, refused = 0;  // refused: longer than the memory or the context limit
  int64_t steps = 0;
  int64_t prompt_tokens = 0, output_tokens = 0, computed_tokens = 0;
  int64_t reusable_tokens = 0;  // of prompts, that an earlier sequence began with
  int64_t prompt_work = 0;      // computed tokens but for each answer's, once: prompts, and what was computed again
  int64_t oracle_tokens = 0;    // of prompts, that nothing before had in common: with keep_oracle
  int64_t cancelled = 0;
  int64_t peak_bytes = 0;  // states and pages together
  double end_s = 0.0;
  double busy_s = 0.0;
  CacheCounters cache;
  int64_t evicted = 0;
  int64_t memory_bytes = 0;
  std::vector<double> first_token_s;  // after arrival
  std::vector<double> whole_s;
  SimSeries series;
  double wall_s = 0.0;  // that the simulation itself took
};

class Simulation {
 public:
  // Throws Error(kInvalidArgument, kOutOfMemory) where the options make no sense or hold no sequence.
  Simulation(const EngineOptions& options, const SimModel& model, SimTrace& trace);
  ~Simulation();
  // Also counts what a cache would compute that keeps everything; takes memory as the traffic is long.
  void keep_oracle();
  // `on_progress` is called now and then, and may throw.
  void run(const std::function<void(int64_t done, int64_t total)>& on_progress);
  const SimResult& result() const noexcept { return result_; }

 private:
  class Memory;
  class Oracle;
  struct Active {
    SimRequest request;
    std::unique_ptr<Sequence> sequence;
    size_t answered = 0;
    bool has_started = false;
    int64_t furthest = 0;  // tokens that were computed once, whatever became of them
  };
  struct Later {
    bool by_priority = false;
    bool operator()(const std::unique_ptr<Active>& a, const std::unique_ptr<Active>& b) const noexcept;
  };

  void admit();
  void step();
  double cost_us(int64_t copied_bytes) const;
  void advance(size_t row);
  void note_start(Active& active);
  void note_work(Active& active, const PlanRow& row);
  void finish(int64_t id);
  void refuse(Active& active);
  SimSample gauges() const;

  SimModel model_;
  SimTrace& trace_;
  std::unique_ptr<EngineConfig> config_;
  std::vector<std::unique_ptr<AttentionLayerBase>> layers_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<StateCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Oracle> oracle_;
  std::vector<std::unique_ptr<Active>> arrived_;  // a heap
  Later later_;
  std::unordered_map<int64_t, std::unique_ptr<Active>> active_;
  StepPlan plan_;
  std::vector<int64_t> plan_ids_;
  int64_t next_id_ = 1;
  size_t max_active_ = 0;
  double clock_s_ = 0.0;
  SimResult result_;
};

}  // namespace coluber::cli
