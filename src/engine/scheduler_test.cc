// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace coluber {
namespace {

// Pages of 4 tokens, and so many of them; a preempted sequence loses everything.
class FakeMemory : public SequenceMemory {
 public:
  explicit FakeMemory(int64_t pages) : free_(pages) {}
  bool start(Sequence& sequence) override {
    if (refuse.contains(&sequence)) return false;
    if (holders > 0 && (sequence.num_tokens() + 3) / 4 > free_) return false;
    ++holders;
    sequence.state_slot = 1;
    ++starts;
    return true;
  }
  bool grow(Sequence& sequence, int64_t num_tokens) override {
    const int64_t more = (num_tokens + 3) / 4 - std::ssize(sequence.pages);
    if (more > free_) return false;
    for (int64_t i = 0; i < more; ++i) sequence.pages.push_back(1);
    free_ -= std::max<int64_t>(more, 0);
    return true;
  }
  int64_t chunk_end(const Sequence& sequence, int64_t end) const override {
    return cut > sequence.num_computed_tokens && cut < end ? cut : end;
  }
  void preempt(Sequence& sequence) override {
    ++preemptions;
    release(sequence);
  }
  void release(Sequence& sequence) {
    if (sequence.state_slot != 0) --holders;
    free_ += std::ssize(sequence.pages);
    sequence.pages.clear();
    sequence.state_slot = 0;
    sequence.num_computed_tokens = 0;
    ++freed_;
  }
  uint64_t times_freed() const noexcept override { return freed_; }

  std::set<const Sequence*> refuse;
  int64_t holders = 0;  // sequences with a slot
  int64_t cut = 0;
  int64_t preemptions = 0;
  int64_t starts = 0;
  int64_t free_pages() const { return free_; }

 private:
  int64_t free_;
  uint64_t freed_ = 0;
};

Sequence sequence_of(int64_t prompt, int64_t computed = 0) {
  Sequence sequence;
  sequence.tokens.assign(static_cast<size_t>(prompt), 1);
  sequence.num_prompt_tokens = prompt;
  sequence.num_computed_tokens = computed;
  return sequence;
}

SchedulerConfig config_of(int64_t tokens, int64_t rows) {
  SchedulerConfig config;
  config.max_num_batched_tokens = tokens;
  config.max_num_seqs = rows;
  return config;
}

struct Steps {
  explicit Steps(const SchedulerConfig& config, int64_t pages = 1000000) : scheduler(config), memory(pages) {}
  void schedule() { scheduler.schedule(memory, plan, ids); }
  // As a step would: what was planned is computed, and whoever is through its tokens gets one more.
  void step() {
    schedule();
    for (const PlanRow& row : plan.rows) {
      row.sequence->num_computed_tokens = row.write_position;
      if (row.logits == WantedLogits::kLast) row.sequence->tokens.push_back(2);
    }
  }
  Scheduler scheduler;
  FakeMemory memory;
  StepPlan plan;
  std::vector<int64_t> ids;
};

TEST(Scheduler, PutsDecodesBeforePrefillsAndCutsChunksToTheBudget) {
  Steps run(config_of(10, 4));
  Sequence long_prompt = sequence_of(25);
  Sequence decoding = sequence_of(3);
  run.scheduler.add({1, &long_prompt, 0, 2});
  run.scheduler.add({2, &decoding, 0, 1});
  run.step();
  ASSERT_EQ(run.ids, (std::vector<int64_t>{2, 1}));
  run.schedule();
  ASSERT_EQ(run.ids, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(run.plan.rows[0].num_tokens, 1);
  EXPECT_EQ(run.plan.rows[1].num_tokens, 9);
  EXPECT_EQ(run.plan.rows[0].logits, WantedLogits::kLast);
  EXPECT_EQ(run.plan.rows[1].logits, WantedLogits::kNone) << "a chunk that does not end the prompt has no logits";
}

TEST(Scheduler, ALongPrefillNeverStopsDecodes) {
  Steps run(config_of(8, 4));
  Sequence decoding = sequence_of(3);
  Sequence long_prompt = sequence_of(200);
  run.scheduler.add({1, &decoding, 0, 1});
  run.step();
  run.scheduler.add({2, &long_prompt, 0, 2});
  for (int i = 0; i < 20; ++i) {
    run.step();
    ASSERT_EQ(run.ids[0], 1);
    ASSERT_EQ(run.plan.num_tokens, 8);
  }
}

TEST(Scheduler, LimitsALongPromptOnlyWhileOthersAreThere) {
  SchedulerConfig config = config_of(100, 4);
  config.long_prefill_token_threshold = 10;
  Steps run(config);
  Sequence first = sequence_of(300);
  run.scheduler.add({1, &first, 0, 1});
  run.step();
  EXPECT_EQ(run.plan.rows[0].num_tokens, 100);
  Sequence second = sequence_of(5);
  run.scheduler.add({2, &second, 0, 2});
  run.step();
  EXPECT_EQ(run.plan.rows[0].num_tokens, 10);
  EXPECT_EQ(run.plan.rows[1].num_tokens, 5);
}

TEST(Scheduler, EndsChunksWhereAStateIsKept) {
  Steps run(config_of(100, 4));
  run.memory.cut = 48;
  Sequence sequence = sequence_of(90);
  run.scheduler.add({1, &sequence, 0, 1});
  run.step();
  EXPECT_EQ(sequence.num_computed_tokens, 48);
  run.step();
  EXPECT_EQ(sequence.num_computed_tokens, 90);
}

TEST(Scheduler, LeavesRequestsWaitingThatCannotStartAndKeepsTheirOrder) {
  Steps run(config_of(100, 4));
  Sequence first = sequence_of(5);
  Sequence second = sequence_of(5);
  run.memory.refuse.insert(&first);
  run.scheduler.add({1, &first, 0, 1});
  run.scheduler.add({2, &second, 0, 2});
  run.schedule();
  EXPECT_TRUE(run.ids.empty()) << "the second must not overtake the first";
  EXPECT_EQ(run.scheduler.stuck(), 1);
  run.memory.refuse.clear();
  run.schedule();
  EXPECT_TRUE(run.ids.empty()) << "nothing has become free: it is not even asked again";
  run.memory.release(first);
  run.schedule();
  EXPECT_EQ(run.ids, (std::vector<int64_t>{1, 2}));
  run.scheduler.remove(1);
  run.scheduler.remove(2);
  EXPECT_TRUE(run.scheduler.empty());
}

TEST(Scheduler, RunsAtMostMaxNumSeqs) {
  Steps run(config_of(100, 2));
  std::vector<Sequence> sequences(5, sequence_of(5));
  for (size_t i = 0; i < sequences.size(); ++i)
    run.scheduler.add({static_cast<int64_t>(i + 1), &sequences[i], 0, static_cast<int64_t>(i)});
  run.schedule();
  EXPECT_EQ(run.plan.rows.size(), 2u);
}

TEST(Scheduler, PreemptsTheYoungestWhenMemoryRunsOutAndBringsItBackFirst) {
  Steps run(config_of(100, 4), 6);
  Sequence first = sequence_of(8);
  Sequence second = sequence_of(8);
  Sequence third = sequence_of(4);
  run.scheduler.add({1, &first, 0, 1});
  run.scheduler.add({2, &second, 0, 2});
  run.step();  // 2 pages each
  run.step();  // a third each: none is left
  EXPECT_EQ(run.memory.free_pages(), 0);
  run.scheduler.add({3, &third, 0, 3});
  for (int i = 0; i < 4; ++i) run.step();
  EXPECT_EQ(run.memory.preemptions, 1);
  EXPECT_EQ(second.state_slot, 0) << "the younger went";
  EXPECT_EQ(run.ids[0], 1);
  run.scheduler.remove(1);
  run.memory.release(first);
  run.schedule();
  EXPECT_EQ(run.ids[0], 2) << "before the newer request";
}

TEST(Scheduler, PrioritiesGoFirstAndTakeThePlaceOfLowerOnes) {
  SchedulerConfig config = config_of(100, 1);
  config.by_priority = true;
  Steps run(config);
  Sequence low = sequence_of(5);
  Sequence high = sequence_of(5);
  run.scheduler.add({1, &low, 5, 1});
  run.step();
  run.scheduler.add({2, &high, -1, 2});
  run.step();
  EXPECT_EQ(run.memory.preemptions, 1);
  run.step();
  EXPECT_EQ(run.ids, (std::vector<int64_t>{2}));
  run.scheduler.remove(2);
  run.step();
  EXPECT_EQ(run.ids, (std::vector<int64_t>{1}));
}

TEST(Scheduler, WhoWaitsWithMemoryOfASessionGivesItToThoseBefore) {
  Steps steps(config_of(64, 1), 6);
  Sequence runs = sequence_of(12), waits = sequence_of(13, 12);
  waits.state_slot = 1;
  ASSERT_TRUE(steps.memory.grow(waits, 12));
  ++steps.memory.holders;
  steps.scheduler.add({1, &runs, 0, 1});
  steps.scheduler.add({2, &waits, 0, 2});
  steps.step();
  EXPECT_EQ(steps.memory.preemptions, 0) << "three pages each: both fit";
  steps.step();
  EXPECT_EQ(steps.memory.preemptions, 1) << "a fourth for the first";
  EXPECT_EQ(waits.state_slot, 0);
  EXPECT_EQ(runs.num_computed_tokens, 13);
}

// Whatever the traffic and however small the memory: every request ends, none waits behind a later one for ever, and
// limits hold at every step.
TEST(Scheduler, NobodyStarvesUnderRandomTraffic) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto upto = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 60; ++round) {
    SchedulerConfig config = config_of(8 + upto(60), 1 + upto(8));
    config.long_prefill_token_threshold = upto(3) == 0 ? 1 + upto(20) : 0;
    config.by_priority = upto(2) == 0;
    const int64_t longest = 120;
    Steps run(config, longest / 4 + upto(60));
    std::map<int64_t, Sequence> sequences;
    std::map<int64_t, int64_t> ends;  // tokens at which a request is through
    int64_t next = 1;
    int64_t steps = 0;
    int64_t tokens = 0;
    while (next < 60 || !sequences.empty()) {
      if (next < 60 && upto(3) == 0) {
        const int64_t prompt = 1 + upto(100);
        sequences[next] = sequence_of(prompt);
        ends[next] = prompt + 1 + upto(longest - prompt - 1);
        run.scheduler.add({next, &sequences[next], upto(3), next});
        tokens += ends[next];
        ++next;
      }
      run.step();
      ASSERT_LE(run.plan.num_tokens, config.max_num_batched_tokens);
      ASSERT_LE(std::ssize(run.plan.rows), config.max_num_seqs);
      ASSERT_TRUE(!run.plan.rows.empty() || sequences.empty()) << "somebody must go on";
      for (const int64_t id : run.ids) {
        if (std::ssize(sequences[id].tokens) < ends[id]) continue;
        run.scheduler.remove(id);
        run.memory.release(sequences[id]);
        sequences.erase(id);
      }
      ASSERT_LT(++steps, 100 * (tokens + 1000)) << "starved";
    }
    EXPECT_TRUE(run.scheduler.empty());
  }
}

}  // namespace
}  // namespace coluber
