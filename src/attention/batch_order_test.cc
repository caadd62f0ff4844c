// SPDX-License-Identifier: Apache-2.0
#include "attention/batch_order.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "attention/batch_test.h"
#include "coluber/error.h"

namespace coluber {
namespace {

using test::Batch;
using test::Flags;
using test::Ints;
using Counts = std::array<int64_t, 4>;

Counts split(const Ints& query_lens, int64_t threshold, bool uniform, int64_t padding = 0) {
  Batch batch;
  batch.query_lens = batch.seq_lens = query_lens;
  batch.padding_tokens = padding;
  const BatchSplit found = split_decodes_and_prefills(batch.common(), {threshold, uniform, true});
  return {found.num_decodes, found.num_prefills, found.num_decode_tokens, found.num_prefill_tokens};
}

TEST(SplitDecodesAndPrefills, SplitsAtTheFirstLongRow) {
  EXPECT_EQ(split({1, 1, 1}, 1, false), (Counts{3, 0, 3, 0}));
  EXPECT_EQ(split({1, 2, 1, 3, 2, 1, 2}, 3, false), (Counts{7, 0, 12, 0}));
  EXPECT_EQ(split({4, 5, 6, 7}, 3, false), (Counts{0, 4, 0, 22}));
  EXPECT_EQ(split({2, 1, 3, 4, 5, 6, 7, 8}, 4, false), (Counts{4, 4, 10, 26}));
}

TEST(SplitDecodesAndPrefills, UniformDecodesEndAtTheFirstOtherLength) {
  EXPECT_EQ(split({1, 1, 1}, 1, true), (Counts{3, 0, 3, 0}));
  EXPECT_EQ(split({2, 2, 1, 3, 2, 1, 2}, 3, true), (Counts{2, 5, 4, 9}));
  EXPECT_EQ(split({4, 5, 6, 7}, 3, true), (Counts{0, 4, 0, 22}));
  EXPECT_EQ(split({2, 2, 2, 4, 5, 6, 7, 8}, 4, true), (Counts{3, 5, 6, 30}));
  EXPECT_EQ(split({2, 1, 2, 4, 5, 6, 7, 8}, 4, true), (Counts{1, 7, 2, 33}));
}

TEST(SplitDecodesAndPrefills, PaddingStaysWithTheLastClass) {
  EXPECT_EQ(split({2, 2, 2, 0}, 3, true, 2), (Counts{4, 0, 8, 0}));
  EXPECT_EQ(split({1, 1, 0}, 1, false, 5), (Counts{3, 0, 7, 0}));
  EXPECT_EQ(split({1, 5}, 1, false, 3), (Counts{1, 1, 1, 8}));
  EXPECT_EQ(split({5, 0}, 1, false, 3), (Counts{0, 2, 0, 8}));
  EXPECT_EQ(split({}, 1, false), (Counts{0, 0, 0, 0}));
}

TEST(SplitDecodesAndPrefills, ShortExtendsCanBePrefills) {
  Batch batch;
  batch.query_lens = {1, 1};
  batch.seq_lens = {9, 9};
  batch.is_prefilling = {0, 1};
  const BatchSplit found = split_decodes_and_prefills(batch.common(), {1, true, false});
  EXPECT_EQ(found.num_decodes, 1);
  EXPECT_EQ(found.num_prefills, 1);
  batch.is_prefilling.clear();
  EXPECT_THROW(split_decodes_and_prefills(batch.common(), {1, true, false}), Error);
}

struct ReorderCase {
  int64_t threshold;
  std::vector<std::array<int64_t, 3>> rows;
  Ints order;
};

TEST(ReorderBatch, MovesOnlyRowsInTheZoneOfAnotherClass) {
  const std::vector<ReorderCase> cases = {
      {1, {{1, 10, 10}, {1, 20, 20}, {1, 30, 30}}, {0, 1, 2}},
      {1, {{100, 100, 100}, {200, 200, 200}, {300, 300, 300}}, {0, 1, 2}},
      {1, {{100, 100, 100}, {1, 10, 10}, {200, 200, 200}, {1, 20, 20}}, {3, 1, 2, 0}},
      {1, {{1, 10, 10}, {1, 20, 20}, {100, 100, 100}, {200, 0, 200}}, {0, 1, 2, 3}},
      {4, {{2, 10, 10}, {3, 20, 20}, {5, 30, 30}, {6, 40, 40}}, {0, 1, 2, 3}},
      {1, {{100, 100, 100}, {200, 200, 200}, {1, 10, 10}, {1, 20, 20}}, {2, 3, 0, 1}},
      {1, {{100, 0, 100}, {10, 50, 50}, {1, 10, 10}}, {2, 1, 0}},
      {1, {{100, 0, 100}, {10, 50, 50}, {200, 0, 200}, {20, 75, 75}}, {3, 1, 2, 0}},
      {1,
       {{1, 20, 20},
        {1, 50, 50},
        {374, 0, 374},
        {300, 20, 20},
        {1, 20, 20},
        {256, 0, 256},
        {1, 5, 5},
        {27, 0, 27},
        {1, 4, 4}},
       {0, 1, 6, 8, 4, 3, 2, 7, 5}},
      {1, {{100, 0, 100}, {1, 0, 1}, {50, 100, 100}, {1, 10, 10}}, {3, 2, 0, 1}},
      {1, {{1, 0, 1}, {1, 0, 1}, {1, 50, 50}, {200, 0, 200}}, {2, 1, 0, 3}},
      {1, {{1, 100, 100}, {1, 50, 100}, {10, 50, 100}, {100, 0, 100}}, {0, 1, 2, 3}},
      {1, {{100, 0, 100}, {1, 50, 100}, {1, 100, 100}, {10, 50, 100}}, {2, 1, 3, 0}},
      {2, {{2, 100, 100}, {2, 50, 200}, {2, 75, 150}, {2, 200, 200}}, {0, 3, 2, 1}},
      {5, {{5, 100, 100}, {5, 50, 100}, {5, 0, 100}, {10, 50, 100}}, {0, 1, 3, 2}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<ScheduledRow> rows;
    for (const auto& row : cases[i].rows) rows.push_back({row[0], row[1], row[2]});
    Ints order;
    const bool modified = reorder_batch_to_split_decodes_and_prefills(rows, cases[i].threshold, order);
    EXPECT_EQ(order, cases[i].order) << "case " << i;
    Ints identity(order.size());
    for (size_t r = 0; r < identity.size(); ++r) identity[r] = static_cast<int32_t>(r);
    EXPECT_EQ(modified, order != identity) << "case " << i;
  }
}

TEST(ReorderBatch, AnyBatchBecomesAPermutationInClassOrder) {
  std::mt19937 engine(17);
  const auto below = [&](uint32_t bound) { return static_cast<int64_t>(engine() % bound); };
  for (int round = 0; round < 500; ++round) {
    std::vector<ScheduledRow> rows(engine() % 12);
    for (ScheduledRow& row : rows) row = {1 + below(4), below(3) * 5, 1 + below(12)};
    Ints order;
    reorder_batch_to_split_decodes_and_prefills(rows, 2, order);
    ASSERT_EQ(order.size(), rows.size());
    std::vector<bool> seen(rows.size(), false);
    int last = 0;
    for (const int32_t old : order) {
      ASSERT_FALSE(seen[static_cast<size_t>(old)]);
      seen[static_cast<size_t>(old)] = true;
      const ScheduledRow& row = rows[static_cast<size_t>(old)];
      const bool is_short = row.num_scheduled_tokens <= 2;
      const int own = row.num_computed_tokens == 0                      ? 3
                      : !is_short                                       ? 2
                      : row.num_computed_tokens < row.num_prompt_tokens ? 1
                                                                        : 0;
      ASSERT_GE(own, last) << "round " << round;
      last = own;
    }
  }
}

TEST(IsPrefilling, PaddedRowsNeverAre) {
  Flags flags;
  const std::vector<int64_t> computed{50, 100, 200, 10, 20};
  const std::vector<int64_t> prompt{50, 200, 200, 100, 200};
  compute_is_prefilling(computed, prompt, 3, flags);
  EXPECT_EQ(flags, (Flags{0, 1, 0, 0, 0}));
}

TEST(CommonMetadata, ContradictionsAreBrokenInvariants) {
  Batch batch;
  batch.query_lens = {2, 1};
  batch.seq_lens = {2, 5};
  CommonAttentionMetadata common = batch.common();
  EXPECT_NO_THROW(check_common_metadata(common));
  common.max_query_len = 1;
  EXPECT_THROW(check_common_metadata(common), Error);
  common = batch.common();
  common.num_actual_tokens = 2;
  EXPECT_THROW(check_common_metadata(common), Error);
  common = batch.common();
  common.seq_lens = common.seq_lens.first(1);
  EXPECT_THROW(check_common_metadata(common), Error);
  batch.seq_lens = {1, 5};
  EXPECT_THROW(check_common_metadata(batch.common()), Error);
}

}  // namespace
}  // namespace coluber
