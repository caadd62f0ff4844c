// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace coluber {

namespace {

// One token after a state: an answer that goes on, or the last token of a prompt.
bool is_decode(const Sequence& sequence) { return sequence.num_computed_tokens > 0 && sequence.num_uncomputed() == 1; }

}  // namespace

bool Scheduler::goes_before(const Entry& a, const Entry& b) const noexcept {
  if (config_.by_priority && a.priority != b.priority) return a.priority < b.priority;
  return a.arrival != b.arrival ? a.arrival < b.arrival : a.id < b.id;
}

void Scheduler::insert(std::vector<Entry>& list, const Entry& entry) const {
  const auto place = std::upper_bound(list.begin(), list.end(), entry,
                                      [this](const Entry& a, const Entry& b) { return goes_before(a, b); });
  list.insert(place, entry);
}

void Scheduler::add(const Entry& entry) { insert(waiting_, entry); }

bool Scheduler::add_running(const Entry& entry) {
  if (num_running() >= config_.max_num_seqs) return false;
  insert(running_, entry);
  return true;
}

void Scheduler::remove(int64_t id) {
  const auto is_it = [id](const Entry& entry) { return entry.id == id; };
  std::erase_if(waiting_, is_it);
  std::erase_if(running_, is_it);
}

void Scheduler::restart(int64_t id) {
  const auto found = std::find_if(running_.begin(), running_.end(), [id](const Entry& e) { return e.id == id; });
  COLUBER_CHECK(found != running_.end(), "sequence {} is restarted but does not run", id);
  const Entry entry = *found;
  running_.erase(found);
  insert(waiting_, entry);
}

int64_t Scheduler::stuck() const noexcept {
  if (!running_.empty()) return running_.front().id;
  return waiting_.empty() ? 0 : waiting_.front().id;
}

// ---- room ------------------------------------------------------------------------------------------------------

void Scheduler::preempt_last() {
  const Entry victim = running_.back();
  running_.pop_back();
  for (size_t row = 0; row < plan_->rows.size(); ++row) {
    if (plan_->rows[row].sequence != victim.sequence) continue;
    plan_->num_tokens -= plan_->rows[row].num_tokens;
    plan_->rows.erase(plan_->rows.begin() + static_cast<int64_t>(row));
    ids_->erase(ids_->begin() + static_cast<int64_t>(row));
    break;
  }
  memory_->preempt(*victim.sequence);
  insert(waiting_, victim);
  preempted_ = true;
}

// Who waits may hold memory too: a session's states came with it. The lowest of those that rank below the entry is
// copied aside, or computed anew when its turn comes.
bool Scheduler::take_from_waiting(const Entry& entry) {
  const auto last = std::find_if(waiting_.rbegin(), waiting_.rend(),
                                 [](const Entry& other) { return other.sequence->state_slot != 0; });
  if (last == waiting_.rend() || !goes_before(entry, *last)) return false;
  memory_->preempt(*last->sequence);
  preempted_ = true;
  return true;
}

// Room for the tokens, at the cost of whoever ranks lower. False where there is none now: the entry keeps what it has
// and waits for those before it, which take it if they must.
bool Scheduler::make_room(const Entry& entry, int64_t num_tokens, bool may_preempt) {
  while (!memory_->grow(*entry.sequence, num_tokens)) {
    if (!may_preempt) return false;
    if (take_from_waiting(entry)) continue;
    if (running_.back().id == entry.id) return false;
    preempt_last();
  }
  return true;
}

bool Scheduler::add_row(const Entry& entry, int64_t tokens, bool may_preempt) {
  Sequence& sequence = *entry.sequence;
  if (!make_room(entry, sequence.num_computed_tokens + tokens, may_preempt)) return false;
  const bool reaches_end = tokens == sequence.num_uncomputed();
  const WantedLogits wanted = sequence.wants_all_logits ? WantedLogits::kAll
                              : reaches_end             ? WantedLogits::kLast
                                                        : WantedLogits::kNone;
  plan_->add(sequence, tokens, wanted);
  ids_->push_back(entry.id);
  return true;
}

// ---- rows ------------------------------------------------------------------------------------------------------

int64_t Scheduler::chunk_tokens(const Entry& entry, const SequenceMemory& memory, int64_t budget) const {
  const Sequence& sequence = *entry.sequence;
  int64_t tokens = std::min(sequence.num_uncomputed(), budget);
  if (tokens == 0) return 0;  // a beam that waits for the others
  if (sequence.most_chunk_tokens > 0) tokens = std::min(tokens, sequence.most_chunk_tokens);
  const bool others = running_.size() + waiting_.size() > 1;
  if (config_.long_prefill_token_threshold > 0 && others)
    tokens = std::min(tokens, config_.long_prefill_token_threshold);
  return memory.chunk_end(sequence, sequence.num_computed_tokens + tokens) - sequence.num_computed_tokens;
}

// By index, from the highest rank down: rows behind the one that is planned may be preempted meanwhile.
void Scheduler::plan_decodes() {
  for (size_t i = 0; i < running_.size(); ++i) {
    const Entry entry = running_[i];
    if (is_decode(*entry.sequence) && budget() > 0) add_row(entry, 1, true);
  }
}

void Scheduler::plan_prefills() {
  for (size_t i = 0; i < running_.size(); ++i) {
    const Entry entry = running_[i];
    if (is_decode(*entry.sequence) || budget() <= 0) continue;
    const int64_t tokens = chunk_tokens(entry, *memory_, budget());
    if (tokens > 0) add_row(entry, tokens, true);
  }
}

// A request of higher priority may take the place of the lowest that runs.
bool Scheduler::preempt_for(const Entry& entry) {
  if (!config_.by_priority || running_.empty() || running_.back().priority <= entry.priority) return false;
  preempt_last();
  return true;
}

void Scheduler::admit() {
  // Whoever was preempted in this step would come back to be preempted again.
  if (preempted_) return;
  while (!waiting_.empty() && budget() > 0) {
    const Entry entry = waiting_.front();
    if (num_running() >= config_.max_num_seqs && !preempt_for(entry)) return;
    const bool blocked = blocked_id_ == entry.id && blocked_at_ == memory_->times_freed();
    if (blocked || !memory_->start(*entry.sequence)) {
      blocked_id_ = entry.id;
      blocked_at_ = memory_->times_freed();
      if (!preempt_for(entry) && (!running_.empty() || !take_from_waiting(entry))) return;
      continue;
    }
    blocked_id_ = 0;
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), [&](const Entry& e) { return e.id == entry.id; }));
    insert(running_, entry);
    const int64_t tokens = is_decode(*entry.sequence) ? 1 : chunk_tokens(entry, *memory_, budget());
    if (tokens > 0 && !add_row(entry, tokens, false)) return;
  }
}

// Beams of a request go on together: those that are there may wait for one that has no place. If nobody else goes on,
// it takes the place of whoever ranks below it.
void Scheduler::make_way() {
  while (plan_->rows.empty() && !waiting_.empty() && !running_.empty() &&
         goes_before(waiting_.front(), running_.back())) {
    preempt_last();
    preempted_ = false;
    admit();
  }
}

void Scheduler::schedule(SequenceMemory& memory, StepPlan& plan, std::vector<int64_t>& ids) {
  plan.clear();
  ids.clear();
  memory_ = &memory;
  plan_ = &plan;
  ids_ = &ids;
  preempted_ = false;
  if (!waiting_.empty()) memory.expect(*waiting_.front().sequence);
  // The configuration keeps max_num_seqs <= max_num_batched_tokens, so decodes alone always fit.
  plan_decodes();
  plan_prefills();
  admit();
  make_way();
}

}  // namespace coluber
