// SPDX-License-Identifier: Apache-2.0
//
// Chooses the rows of a step: every running decode first, then prefill chunks, by rank (priority where that is asked
// for, then arrival), under the token and row limits. Memory is asked for as steps need it; where there is none, the
// sequence of the lowest rank is preempted and comes back before newer ones. The highest rank is never preempted, so it
// ends, and the next one is the highest then: nobody starves. Owns no sequence and touches no memory. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "coluber/config.h"
#include "engine/sequence_memory.h"
#include "engine/step_plan.h"

namespace coluber {

class Scheduler {
 public:
  struct Entry {
    int64_t id = 0;
    Sequence* sequence = nullptr;
    int64_t priority = 0;  // lower goes first
    int64_t arrival = 0;   // a number that grows
  };

  explicit Scheduler(const SchedulerConfig& config) : config_(config) {}

  void add(const Entry& entry);  // to those that wait
  // A sequence that has its cache already (a fork): runs at once. False where no row is free.
  bool add_running(const Entry& entry);
  void remove(int64_t id);
  // A running sequence lost its cache: it waits for its turn again.
  void restart(int64_t id);
  bool empty() const noexcept { return waiting_.empty() && running_.empty(); }
  int64_t num_waiting() const noexcept { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_running() const noexcept { return static_cast<int64_t>(running_.size()); }

  // Fills `plan` (cleared first) and the ids of its rows, in the same order. An empty plan although sequences are there
  // means that no memory can be had for `stuck()`, with nothing left to preempt.
  void schedule(SequenceMemory& memory, StepPlan& plan, std::vector<int64_t>& ids);
  int64_t stuck() const noexcept;

 private:
  bool goes_before(const Entry& a, const Entry& b) const noexcept;
  void insert(std::vector<Entry>& list, const Entry& entry) const;
  int64_t chunk_tokens(const Entry& entry, const SequenceMemory& memory, int64_t budget) const;
  bool make_room(const Entry& entry, int64_t num_tokens, bool may_preempt);
  void preempt_last();
  bool take_from_waiting(const Entry& entry);
  bool preempt_for(const Entry& entry);
  void plan_decodes();
  void plan_prefills();
  void admit();
  void make_way();
  bool add_row(const Entry& entry, int64_t tokens, bool may_preempt);
  int64_t budget() const noexcept { return config_.max_num_batched_tokens - plan_->num_tokens; }

  SchedulerConfig config_;
  std::vector<Entry> waiting_;  // by rank
  std::vector<Entry> running_;  // by rank
  bool preempted_ = false;      // in this step
  int64_t blocked_id_ = 0;      // could not start, and nothing has become free since
  uint64_t blocked_at_ = 0;

  // Of the call.
  SequenceMemory* memory_ = nullptr;
  StepPlan* plan_ = nullptr;
  std::vector<int64_t>* ids_ = nullptr;
};

}  // namespace coluber
