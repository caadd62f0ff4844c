// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <gtest/gtest.h>

namespace coluber {
namespace {

Sequence sequence_of(int64_t prompt, int64_t computed) {
  Sequence sequence;
  sequence.tokens.assign(static_cast<size_t>(prompt), 1);
  sequence.num_prompt_tokens = prompt;
  sequence.num_computed_tokens = computed;
  sequence.state_slot = 1;
  return sequence;
}

TEST(Scheduler, PutsDecodesBeforePrefillsAndCutsChunksToTheBudget) {
  Scheduler scheduler({.max_num_batched_tokens = 10, .max_num_seqs = 4});
  Sequence long_prompt = sequence_of(25, 0);
  Sequence decoding = sequence_of(3, 3);
  decoding.tokens.push_back(7);
  scheduler.add({1, &long_prompt});
  scheduler.add({2, &decoding});
  StepPlan plan;
  std::vector<int64_t> ids;
  scheduler.schedule([](const Scheduler::Entry&) { return true; }, plan, ids);
  ASSERT_EQ(ids, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(plan.rows[0].num_tokens, 1);
  EXPECT_EQ(plan.rows[1].num_tokens, 9);
  EXPECT_EQ(plan.rows[0].logits, WantedLogits::kLast);
  EXPECT_EQ(plan.rows[1].logits, WantedLogits::kNone) << "a chunk that does not end the prompt has no logits";
  EXPECT_EQ(plan.rows[1].write_position, 9);
}

TEST(Scheduler, LeavesRequestsWaitingThatCannotBeAdmittedAndKeepsTheirOrder) {
  Scheduler scheduler({.max_num_batched_tokens = 100, .max_num_seqs = 4});
  Sequence first = sequence_of(5, 0);
  Sequence second = sequence_of(5, 0);
  scheduler.add({1, &first});
  scheduler.add({2, &second});
  StepPlan plan;
  std::vector<int64_t> ids;
  scheduler.schedule([&](const Scheduler::Entry& entry) { return entry.sequence != &first; }, plan, ids);
  EXPECT_TRUE(ids.empty()) << "the second must not overtake the first";
  scheduler.schedule([](const Scheduler::Entry&) { return true; }, plan, ids);
  EXPECT_EQ(ids, (std::vector<int64_t>{1, 2}));
  scheduler.remove(1);
  scheduler.remove(2);
  EXPECT_TRUE(scheduler.empty());
}

TEST(Scheduler, RunsAtMostMaxNumSeqs) {
  Scheduler scheduler({.max_num_batched_tokens = 100, .max_num_seqs = 2});
  std::vector<Sequence> sequences(5, sequence_of(5, 0));
  for (size_t i = 0; i < sequences.size(); ++i) scheduler.add({static_cast<int64_t>(i), &sequences[i]});
  StepPlan plan;
  std::vector<int64_t> ids;
  scheduler.schedule([](const Scheduler::Entry&) { return true; }, plan, ids);
  EXPECT_EQ(plan.rows.size(), 2u);
}

}  // namespace
}  // namespace coluber
