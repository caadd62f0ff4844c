// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace coluber {
namespace {

using Positions = std::vector<int64_t>;

// Where the chunks of a prefill end, with `budget` tokens a step.
Positions chunk_ends(AlignRule rule, int64_t start, int64_t prompt, int64_t budget, int64_t junction = 0) {
  rule.max_chunk = budget;
  Positions ends;
  while (start < prompt && ends.size() < 100) {
    start += align_split(rule, {start, std::min(budget, prompt - start), prompt, prompt, junction});
    ends.push_back(start);
  }
  return ends;
}

AlignRule rule_of(int64_t block, int64_t hash, bool drop = false) {
  AlignRule rule;
  rule.block_size = block;
  rule.hash_block_size = hash;
  rule.drop_last_block = drop;
  return rule;
}

TEST(AlignSplit, EndsChunksAtBlocksAndAtThePromptsLastBoundaries) {
  EXPECT_EQ(chunk_ends(rule_of(512, 32), 0, 10000, 8192), (Positions{8192, 9728, 9984, 10000}));
  EXPECT_EQ(chunk_ends(rule_of(512, 512), 0, 10000, 8192), (Positions{8192, 9728, 10000}));
  EXPECT_EQ(chunk_ends(rule_of(512, 512, true), 0, 10000, 8192), (Positions{8192, 9216, 10000}));
  EXPECT_EQ(chunk_ends(rule_of(512, 32, true), 0, 10000, 8192), (Positions{8192, 9216, 9952, 10000}));
}

TEST(AlignSplit, AResumedPrefillReachesTheNextBlockEndFirst) {
  EXPECT_EQ(chunk_ends(rule_of(512, 32), 9984, 12000, 8192)[0], 10240);
  AlignRule rule = rule_of(512, 32);
  rule.max_chunk = 8192;
  EXPECT_EQ(align_split(rule, {10240, 1000, 12000, 12000, 0}), 512);
  EXPECT_EQ(chunk_ends(rule_of(1600, 1600), 368, 8007, 16384), (Positions{1600, 8000, 8007}));
}

TEST(AlignSplit, ABlockWiderThanAChunkIsCrossedInParts) {
  EXPECT_EQ(chunk_ends(rule_of(1600, 1600), 0, 5000, 700),
            (Positions{700, 1400, 1600, 2300, 3000, 3200, 3900, 4600, 4800, 5000}));
}

TEST(AlignSplit, LayersThatExportInMidPrefillNeedNoCut) {
  for (const int64_t alignment : {1, 64}) {
    AlignRule rule = rule_of(512, 32);
    rule.exports_mid_prefill = true;
    rule.export_alignment = alignment;
    EXPECT_EQ(chunk_ends(rule, 0, 10000, 8192), (Positions{8192, 10000})) << alignment;
    EXPECT_EQ(chunk_ends(rule, 0, 10000, 16384), (Positions{10000})) << alignment;
  }
}

TEST(AlignSplit, StopsWhereAnotherSequenceParts) {
  EXPECT_EQ(chunk_ends(rule_of(512, 512), 0, 3000, 8192, 1000)[0], 512);
  AlignRule exact = rule_of(512, 32);
  exact.exact_junction = true;
  EXPECT_EQ(chunk_ends(exact, 0, 3000, 8192, 1000)[0], 1000);
}

TEST(AlignSplit, DecodesAreLeftAlone) {
  AlignRule rule = rule_of(16, 16);
  rule.max_chunk = 512;
  EXPECT_EQ(align_split(rule, {100, 1, 100, 101, 0}), 1);
  EXPECT_THROW(align_split(rule_of(0, 16), {0, 1, 1, 1, 0}), Error);
}

CheckpointPolicy policy_of(MambaCacheMode mode, int64_t unit = 16, int64_t block = 256) {
  CheckpointPolicy policy;
  policy.mode = mode;
  policy.unit = unit;
  policy.block_size = block;
  return policy;
}

Positions plan(const CheckpointPolicy& policy, PromptFacts facts) {
  if (facts.max_checkpoints == 0) facts.max_checkpoints = 100;
  Positions positions{-5};  // what was there is gone
  plan_checkpoints(policy, facts, positions);
  return positions;
}

TEST(CheckpointPolicy, NoneAndAlignPlanNothingAhead) {
  EXPECT_TRUE(plan(policy_of(MambaCacheMode::kNone), {.prompt_tokens = 5000}).empty());
  EXPECT_TRUE(plan(policy_of(MambaCacheMode::kAlign), {.prompt_tokens = 5000}).empty());
}

TEST(CheckpointPolicy, AllKeepsEveryBlockEndAfterTheHit) {
  EXPECT_EQ(plan(policy_of(MambaCacheMode::kAll), {.prompt_tokens = 1024, .hit_tokens = 300}),
            (Positions{512, 768, 1024}));
  CheckpointPolicy sparse = policy_of(MambaCacheMode::kAll);
  sparse.retention_interval = 512;
  EXPECT_EQ(plan(sparse, {.prompt_tokens = 2000}), (Positions{512, 1024, 1536, 1792}));
  sparse.retention_interval = 0;
  EXPECT_EQ(plan(sparse, {.prompt_tokens = 2000, .common_tokens = 700}), (Positions{512, 1792}))
      << "where another prompt parted, and the last block a repetition can use";
}

TEST(CheckpointPolicy, AutoKeepsThePromptsEndAndTheBranch) {
  const CheckpointPolicy policy = policy_of(MambaCacheMode::kAuto);
  EXPECT_EQ(plan(policy, {.prompt_tokens = 400}), (Positions{128, 384})) << "also along the way";
  EXPECT_EQ(plan(policy, {.prompt_tokens = 401, .common_tokens = 250}), (Positions{128, 240, 400}));
  EXPECT_EQ(plan(policy, {.prompt_tokens = 400, .hit_tokens = 240, .common_tokens = 250}), (Positions{384}));
  EXPECT_EQ(plan(policy, {.prompt_tokens = 320, .common_tokens = 300}), (Positions{288})) << "parts near the end";
  EXPECT_TRUE(plan(policy, {.prompt_tokens = 20}).empty()) << "too short to pay for a cut";
  EXPECT_TRUE(plan(policy, {.prompt_tokens = 400, .hit_tokens = 384}).empty());
}

TEST(CheckpointPolicy, AutoLeavesAStateNearEveryPlaceOfALongPrompt) {
  const CheckpointPolicy policy = policy_of(MambaCacheMode::kAuto);
  for (const int64_t prompt : {1000, 8192, 30000, 100001, 258000}) {
    const Positions positions = plan(policy, {.prompt_tokens = prompt});
    ASSERT_TRUE(std::is_sorted(positions.begin(), positions.end()));
    EXPECT_LE(positions.size(), 12u);
    for (const int64_t position : positions) {
      EXPECT_EQ(position % 16, 0);
      EXPECT_LT(position, prompt);
    }
    for (int64_t edit = prompt - 1; edit > 0; edit -= prompt / 97) {
      int64_t nearest = 0;
      for (const int64_t position : positions)
        if (position <= edit) nearest = position;
      EXPECT_LE(prompt - nearest, 3 * (prompt - edit) + 1024) << "edit at " << edit << " of " << prompt;
    }
    EXPECT_LE(positions.front(), std::max<int64_t>(prompt / 2, 1000));
  }
}

TEST(CheckpointPolicy, AutoKeepsToTheMemoryThereIs) {
  PromptFacts facts{.prompt_tokens = 100000, .common_tokens = 5000, .max_checkpoints = 2};
  EXPECT_EQ(plan(policy_of(MambaCacheMode::kAuto), facts), (Positions{4992, 99984})) << "end and branch come first";
  facts.max_checkpoints = 1;
  EXPECT_EQ(plan(policy_of(MambaCacheMode::kAuto), facts), (Positions{99984}));
}

TEST(CheckpointPolicy, StepsLeaveStatesAtThePlacesThatTheyRunOver) {
  CheckpointPolicy policy;
  policy.mode = MambaCacheMode::kAlign;
  policy.block_size = 64;
  PromptFacts facts;
  facts.prompt_tokens = 250;
  facts.max_checkpoints = 10;
  Positions found;
  const auto between = [&](int64_t start, int64_t end) {
    inner_checkpoints(policy, facts, {100, 160, 200}, start, end, found);
    return found;
  };
  EXPECT_EQ(between(0, 250), (Positions{64, 128, 192}));
  EXPECT_EQ(between(64, 192), (Positions{128}));
  EXPECT_EQ(between(65, 128), Positions{});
  policy.match_unit = 16;  // the last place before the prompt's last token: 240
  EXPECT_EQ(between(0, 250), (Positions{64, 128, 192, 240}));
  EXPECT_EQ(between(200, 241), (Positions{240}));
  EXPECT_EQ(between(200, 240), Positions{});
  facts.max_checkpoints = 2;
  EXPECT_EQ(between(0, 250), (Positions{192, 240}));
  policy.mode = MambaCacheMode::kAuto;
  facts.max_checkpoints = 10;
  EXPECT_EQ(between(100, 200), (Positions{160}));
  EXPECT_EQ(between(0, 250), (Positions{100, 160, 200}));
}

TEST(CheckpointPolicy, StepsThatEndAtBlocksAreKeptInTheContractsModes) {
  const PromptFacts facts{.prompt_tokens = 1000};
  EXPECT_TRUE(keeps_step_end(policy_of(MambaCacheMode::kAlign), facts, 512));
  EXPECT_TRUE(keeps_step_end(policy_of(MambaCacheMode::kAll), facts, 1280)) << "of the answer too";
  EXPECT_FALSE(keeps_step_end(policy_of(MambaCacheMode::kAlign), facts, 500));
  EXPECT_FALSE(keeps_step_end(policy_of(MambaCacheMode::kAuto), facts, 512));
  CheckpointPolicy fine = policy_of(MambaCacheMode::kAlign);
  fine.match_unit = 32;
  EXPECT_TRUE(keeps_step_end(fine, facts, 992)) << "the finest boundary before the prompt's end";
  EXPECT_FALSE(keeps_step_end(fine, facts, 960));
}

}  // namespace
}  // namespace coluber
