// SPDX-License-Identifier: Apache-2.0
//
// What an Engine is made of; its sessions use the same parts. A request has one answer or more, each a sequence of its
// own that the scheduler knows by a number; answers after the first are forks of it, made where its prompt ends.
// Private to the engine folder.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "coluber/engine.h"
#include "engine/beam_search.h"
#include "engine/generation.h"
#include "engine/load.h"
#include "engine/prompt_reader.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/state_cache.h"

namespace coluber {

struct Engine::Impl {
  Impl(const EngineOptions& options, LoadedModel loaded);

  struct Answer {
    RequestId request = 0;
    int64_t index = 0;
    std::unique_ptr<Sequence> sequence;
    Generation generation;
    double cumulative_logprob = 0.0;
    RequestOutput held;  // best_of: what it said so far
  };
  struct ActiveRequest {
    Request request;  // without its prompt
    uint64_t seed = 0;
    uint64_t first_draw = 0;  // of the seed's stream
    int64_t prompt_tokens = 0;
    int64_t answer_start = 0;      // less than prompt_tokens where a session's answer goes on
    int64_t max_total_tokens = 0;  // prompt and output
    int64_t arrival = 0;
    std::chrono::steady_clock::time_point added = std::chrono::steady_clock::now();
    int64_t queue_us = -1;                 // until the first step with a row of it; -1: it still waits for that
    int64_t num_made = 0;                  // answers begun
    int64_t session_tokens = 0;            // that the session held before
    std::vector<int64_t> running;          // answers that go on; of beams in the search's order
    std::vector<RequestOutput> ended;      // best_of: answers to choose from
    std::unique_ptr<PromptReader> reader;  // null where the prompt is not looked at
    std::unique_ptr<BeamSearch> beams;     // null where answers are sampled

    int64_t wanted() const noexcept { return request.best_of > 0 ? request.best_of : request.n; }
    bool chooses() const noexcept { return wanted() > request.n; }
  };

  uint64_t next_seed(const SamplingParams& params);
  RequestId add_request(Request request);
  void abort(RequestId id);
  void step(std::vector<RequestOutput>& outputs);
  EngineStats stats() const;

  void check_request(const Request& request) const;
  // Sessions (session_requests.cc): tokens and states go to a request, and back.
  void check_session(const Request& request) const;
  std::unique_ptr<Sequence> take_session(ActiveRequest& request, RequestId id);
  void give_session_back(ActiveRequest& request, Sequence& sequence, bool failed);
  std::span<const int32_t> held_tokens(const Request& request) const;
  void prepare(ActiveRequest& request, Sequence& sequence);
  int64_t add_answer(RequestId id, ActiveRequest& request, std::unique_ptr<Sequence> sequence);
  // An answer that goes on from where `from` is.
  int64_t fork_answer(RequestId id, ActiveRequest& request, const Sequence& from);
  void fork_answers(int64_t leader, std::span<const float> logits, std::vector<RequestOutput>& outputs);
  // The next token of an answer, from its logits.
  void advance(int64_t answer, std::span<const float> logits, std::vector<RequestOutput>& outputs);
  void advance(int64_t answer, Generation::Result result, std::vector<RequestOutput>& outputs);
  void fail_answer(int64_t answer, ErrorCode code, const std::string& message, std::vector<RequestOutput>& outputs);
  // Where a step has ended: the prefix cache may keep the states. False where they are not finite: the answer has
  // ended.
  bool keep_states(int64_t answer, std::vector<RequestOutput>& outputs);
  // Takes an answer's output to the caller, or keeps it where the best are chosen at the end; ends what has ended.
  void deliver(int64_t answer, RequestOutput output, std::vector<RequestOutput>& outputs);
  void deliver_best(ActiveRequest& request, std::vector<RequestOutput>& outputs);
  RequestOutput new_output(const Answer& answer) const;
  void end_answer(int64_t answer, bool keep);

  // Prompts that are looked at (prompt_reading.cc). False where the request has ended of it.
  bool read_prompt(size_t row, std::vector<RequestOutput>& outputs);
  void end_without_tokens(int64_t answer, std::vector<RequestOutput>& outputs);
  void pool_hidden(const float* values, int64_t cols);
  bool pools_in_plan() const;

  // Beams (beams.cc).
  void add_beams(ActiveRequest& request) const;
  void advance_beam(int64_t answer, std::span<const float> logits, std::vector<RequestOutput>& outputs);
  void fork_beams(RequestId id, ActiveRequest& request);
  void deliver_beams(RequestId id, ActiveRequest& request, std::vector<RequestOutput>& outputs);
  RequestOutput beam_output(const Answer& answer, const BeamHypothesis& hypothesis, int64_t index) const;

  void restart_broken_rows();
  // Of requests of which the plan computes something for the first time: how long they waited for it.
  void note_begun();
  void note_largest();
  void take_row(size_t row, std::vector<RequestOutput>& outputs);
  bool run_plan(std::vector<RequestOutput>& outputs);
  void fail_stuck(std::vector<RequestOutput>& outputs);

  EngineOptions options;
  LoadedModel loaded;
  std::unique_ptr<StateCache> cache;
  std::unique_ptr<Runner> runner;
  Scheduler scheduler;
  std::function<bool()> make_way;               // of sessions, for requests
  std::unordered_set<const Sequence*> held;     // of sessions and their checkpoints
  std::map<RequestId, ActiveRequest> requests;  // which may own sessions
  std::unordered_map<int64_t, Answer> answers;
  RequestId next_id = 1;
  int64_t next_answer = 1;
  uint64_t seed_counter = 0;
  int64_t computed_tokens = 0;
  int64_t non_finite_requests = 0;
  SampleScratch beam_scratch;
  StepPlan plan;
  std::vector<int64_t> plan_ids;
  mutable std::vector<RequestOutput> spare;  // of earlier steps, for their memory
};

}  // namespace coluber
