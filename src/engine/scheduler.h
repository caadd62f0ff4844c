// SPDX-License-Identifier: Apache-2.0
//
// Chooses the rows of a step: every running decode first, then prefill chunks in order of arrival, under the token and
// row limits. A request is admitted when a slot and the pages for its whole length can be had, so it never runs out
// midway.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "coluber/config.h"
#include "engine/step_plan.h"

namespace coluber {

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config) : config_(config) {}

  // `admit` gives a waiting sequence its cache; false leaves it waiting.
  struct Entry {
    int64_t id = 0;
    Sequence* sequence = nullptr;
  };
  void add(Entry entry) { waiting_.push_back(entry); }
  void remove(int64_t id);
  bool empty() const noexcept { return waiting_.empty() && running_.empty(); }

  // Fills `plan` (cleared first) and the ids of its rows, in the same order.
  void schedule(const std::function<bool(const Entry&)>& admit, StepPlan& plan, std::vector<int64_t>& ids);

 private:
  void plan_row(const Entry& entry, int64_t budget, StepPlan& plan, std::vector<int64_t>& ids) const;

  SchedulerConfig config_;
  std::deque<Entry> waiting_;
  std::vector<Entry> running_;
};

}  // namespace coluber
