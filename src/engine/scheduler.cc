// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>

namespace coluber {

void Scheduler::remove(int64_t id) {
  auto is_it = [id](const Entry& entry) { return entry.id == id; };
  std::erase_if(waiting_, is_it);
  std::erase_if(running_, is_it);
}

void Scheduler::plan_row(const Entry& entry, int64_t budget, StepPlan& plan, std::vector<int64_t>& ids) const {
  const int64_t tokens = std::min(entry.sequence->num_uncomputed(), budget);
  const bool reaches_end = tokens == entry.sequence->num_uncomputed();
  plan.add(*entry.sequence, tokens, reaches_end ? WantedLogits::kLast : WantedLogits::kNone);
  ids.push_back(entry.id);
}

void Scheduler::schedule(const std::function<bool(const Entry&)>& admit, StepPlan& plan, std::vector<int64_t>& ids) {
  plan.clear();
  ids.clear();
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < config_.max_num_seqs && admit(waiting_.front())) {
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
  // The configuration keeps max_num_seqs <= max_num_batched_tokens, so decodes alone always fit.
  auto budget = [&] { return config_.max_num_batched_tokens - plan.num_tokens; };
  for (const Entry& entry : running_)
    if (!entry.sequence->is_prefilling()) plan_row(entry, budget(), plan, ids);
  for (const Entry& entry : running_)
    if (entry.sequence->is_prefilling() && budget() > 0) plan_row(entry, budget(), plan, ids);
}

}  // namespace coluber
