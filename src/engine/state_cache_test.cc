// SPDX-License-Identifier: Apache-2.0
#include "engine/state_cache.h"

#include <gtest/gtest.h>

#include "engine/load.h"
#include "engine/runner.h"

namespace coluber {
namespace {

class StateCacheTest : public testing::Test {
 protected:
  void SetUp() override { load(DType::kFloat32, MambaCacheMode::kNone); }
  void load(DType pages, MambaCacheMode mode) {
    EngineOptions options;
    options.model = std::string(COLUBER_SOURCE_DIR) + "/tests/data/lfm2";  // convolution states and attention pages
    options.num_threads = 1;
    options.kv_cache_dtype = pages;
    runner_.reset();
    cache_.reset();
    loaded_ = load_model(options);
    make_cache(int64_t{64} << 20, mode);
  }
  void make_cache(int64_t memory_bytes, MambaCacheMode mode = MambaCacheMode::kNone) {
    StateCacheOptions options;
    options.policy.mode = mode;
    options.num_slots = 4;
    options.memory_bytes = memory_bytes;
    options.poison = true;
    cache_ = std::make_unique<StateCache>(*loaded_.config, cpu_device(), options);
    runner_ = std::make_unique<Runner>(*loaded_.config, *loaded_.model, *cache_, *loaded_.pool);
  }
  Sequence prompt(int64_t tokens) {
    Sequence sequence;
    for (int64_t i = 0; i < tokens; ++i) sequence.tokens.push_back(static_cast<int32_t>(10 + i));
    sequence.num_prompt_tokens = tokens;
    return sequence;
  }
  void run(Sequence& sequence, int64_t tokens) {
    StepPlan plan;
    plan.add(sequence, tokens, WantedLogits::kLast);
    runner_->run(plan);
  }
  ErrorCode code_of_run(Sequence& sequence, int64_t tokens) {
    try {
      run(sequence, tokens);
      return ErrorCode::kOk;
    } catch (const Error& error) {
      return error.code();
    }
  }

  LoadedModel loaded_;
  std::unique_ptr<StateCache> cache_;
  std::unique_ptr<Runner> runner_;
};

TEST_F(StateCacheTest, AStateIsReadOnlyAtTheVeryPrefixThatWroteIt) {
  Sequence sequence = prompt(8);
  ASSERT_TRUE(cache_->reserve(sequence, 8));
  run(sequence, 5);
  EXPECT_EQ(sequence.num_computed_tokens, 5);

  const Sequence good = sequence;
  sequence.num_computed_tokens = 4;  // a plan that is one token behind
  EXPECT_EQ(code_of_run(sequence, 2), ErrorCode::kInternal);
  sequence = good;
  sequence.prefix_hash = {};
  sequence.prefix_hash.extend(std::vector<int32_t>{1, 2, 3, 4, 5});  // as many tokens, but others
  EXPECT_EQ(code_of_run(sequence, 2), ErrorCode::kInternal);
  sequence = good;
  EXPECT_EQ(code_of_run(sequence, 3), ErrorCode::kOk) << "the refused plans must not have touched the state";
}

TEST_F(StateCacheTest, AnotherSequencesSlotIsRefused) {
  Sequence first = prompt(6);
  Sequence second = prompt(7);
  ASSERT_TRUE(cache_->reserve(first, 6));
  ASSERT_TRUE(cache_->reserve(second, 7));
  run(first, 3);
  run(second, 4);
  std::swap(first.state_slot, second.state_slot);
  EXPECT_EQ(code_of_run(first, 1), ErrorCode::kInternal);
  EXPECT_EQ(code_of_run(second, 1), ErrorCode::kInternal);
  std::swap(first.state_slot, second.state_slot);
  EXPECT_EQ(code_of_run(first, 3), ErrorCode::kOk);
}

TEST_F(StateCacheTest, AFailedStepLeavesNoStateThatALaterStepTrusts) {
  Sequence sequence = prompt(6);
  ASSERT_TRUE(cache_->reserve(sequence, 6));
  run(sequence, 3);
  PlanRow row{&sequence, 1, sequence.state_slot, 3, sequence.state_slot, 4, WantedLogits::kNone};
  cache_->begin_write(row);  // and the step never ends
  EXPECT_EQ(code_of_run(sequence, 1), ErrorCode::kInternal);
}

TEST_F(StateCacheTest, WhatCannotBeReservedChangesNothing) {
  make_cache(cache_->bytes_for(40));
  Sequence sequence = prompt(8);
  EXPECT_FALSE(cache_->reserve(sequence, 1000));
  EXPECT_EQ(sequence.state_slot, 0);
  EXPECT_TRUE(sequence.pages.empty());
  EXPECT_FALSE(cache_->can_ever_hold(1000));
  ASSERT_TRUE(cache_->reserve(sequence, 40));
  Sequence other = prompt(8);
  EXPECT_FALSE(cache_->reserve(other, 1)) << "the budget is used up";
  cache_->release(sequence);
  EXPECT_TRUE(cache_->reserve(other, 1));
}

TEST_F(StateCacheTest, MemoryOfALongSequenceIsGivenBackWhenItEnds) {
  make_cache(int64_t{1} << 30);
  const int64_t tokens = (int64_t{256} << 20) / (cache_->bytes_for(16) - cache_->bytes_for(0)) * 16;
  Sequence small = prompt(8);
  Sequence large = prompt(8);
  ASSERT_TRUE(cache_->reserve(small, 8));
  ASSERT_TRUE(cache_->reserve(large, tokens));
  EXPECT_GE(cache_->mapped_bytes(), int64_t{256} << 20);
  run(small, 4);
  cache_->release(large);
  EXPECT_LT(cache_->mapped_bytes(), int64_t{16} << 20);
  EXPECT_EQ(code_of_run(small, 4), ErrorCode::kOk) << "who still runs keeps what is his";
}

TEST_F(StateCacheTest, PagesWithANumberThatIsNotFiniteAreKeptForNobody) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kFloat8E4M3}) {
    for (const bool broken : {false, true}) {
      SCOPED_TRACE(dtype_name(dtype));
      load(dtype, MambaCacheMode::kAuto);
      Sequence sequence = prompt(40);
      sequence.request_id = 1;
      ASSERT_TRUE(cache_->reserve(sequence, 40));
      run(sequence, 40);
      SessionBytes bytes = cache_->saved_bytes(sequence);
      std::vector<std::byte> nan(bytes.pages[1].size(), std::byte{0xff});
      if (broken) bytes.pages[1] = nan;
      cache_->restore(sequence, bytes);
      cache_->finish(sequence);
      EXPECT_EQ(cache_->counters().non_finite, broken ? 1 : 0);
      EXPECT_EQ(cache_->counters().published, broken ? 0 : 1);
    }
  }
}

TEST_F(StateCacheTest, ACacheTooSmallForOneSequenceIsRefusedWithTheSizes) {
  try {
    make_cache(100);
    FAIL() << "100 bytes hold no sequence";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("100 B"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coluber
