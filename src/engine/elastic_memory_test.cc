// SPDX-License-Identifier: Apache-2.0
//
// Physical memory moves between states and attention pages while requests are served, within one budget: what the
// system says is resident is measured, not what the pools believe.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <list>

#include "engine/state_cache.h"
#include "layers/idle_layers.h"

namespace coluber {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;

int64_t resident_bytes(const TensorView& pages) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const auto begin =
      reinterpret_cast<uintptr_t>(pages.data) / static_cast<uintptr_t>(page) * static_cast<uintptr_t>(page);
  const int64_t bytes = (pages.shape[0] * pages.strides[0] + page - 1) / page * page;
  std::vector<unsigned char> in_core(static_cast<size_t>(bytes / page));
  if (mincore(reinterpret_cast<void*>(begin), static_cast<size_t>(bytes), in_core.data()) != 0) return -1;
  return page * std::count_if(in_core.begin(), in_core.end(), [](unsigned char c) { return (c & 1) != 0; });
}

int64_t resident_bytes(const IdleStates& layer) {
  TensorView view = layer.kv_cache()[0];
  view.strides = Shape{view.strides[0] * 4, 1};
  return resident_bytes(view);
}
int64_t resident_bytes(const IdleAttention& layer) { return resident_bytes(layer.pages()); }

class ElasticMemory : public testing::Test {
 protected:
  static constexpr int64_t kBudget = 96 * kMegabyte;
  static constexpr int64_t kSlack = 8 * kMegabyte;  // a slab of each kind, and pages that lie scattered

  void make(MambaCacheMode mode) {
    config_.cache.mamba_block_size = 1 << 20;
    config_.max_model_len = 1 << 20;
    config_.register_layer(states_);
    config_.register_layer(attention_);
    StateCacheOptions options;
    options.num_slots = 1000;
    options.memory_bytes = kBudget;
    options.policy.mode = mode;
    options.preemption = PreemptionMode::kRecompute;
    options.poison = true;  // pages are touched as they are handed out
    cache_ = std::make_unique<StateCache>(config_, cpu_device(), options);
    // NaN would be noticed.
    cache_->plant(PlantedFault::kSkipScrub);
  }

  // As far as its prompt is long; empty where there is no room now.
  Sequence* begin(int64_t tokens) {
    sequences_.emplace_back();
    Sequence& sequence = sequences_.back();
    for (int64_t i = 0; i < tokens; ++i) sequence.tokens.push_back(next_token_++);
    sequence.num_prompt_tokens = tokens;
    sequence.request_id = ++next_id_;
    if (!cache_->start(sequence) || !cache_->grow(sequence, tokens)) {
      cache_->release(sequence);
      sequences_.pop_back();
      return nullptr;
    }
    while (sequence.num_uncomputed() > 0) {
      const int64_t end = cache_->chunk_end(sequence, tokens);
      EXPECT_TRUE(cache_->grow(sequence, end));
      PlanRow row{&sequence,           end - sequence.num_computed_tokens,
                  sequence.state_slot, sequence.num_computed_tokens,
                  sequence.state_slot, end,
                  WantedLogits::kNone};
      cache_->check_read(row);
      cache_->begin_write(row);
      cache_->end_write(row);
      EXPECT_TRUE(cache_->keep_step_end(sequence));
    }
    return &sequence;
  }
  void end_oldest() {
    cache_->finish(sequences_.front());
    sequences_.pop_front();
  }
  // One after another, each beginning as soon as there is room.
  void serve(int64_t count, int64_t tokens) {
    for (int64_t i = 0; i < count; ++i) {
      while (begin(tokens) == nullptr) {
        ASSERT_FALSE(sequences_.empty());
        end_oldest();
      }
      most_mapped_ = std::max(most_mapped_, cache_->mapped_bytes());
    }
  }

  EngineConfig config_;
  IdleStates states_{256 << 10, DType::kFloat32};
  IdleAttention attention_{1024, DType::kFloat32};
  std::unique_ptr<StateCache> cache_;
  std::list<Sequence> sequences_;
  int32_t next_token_ = 1;
  int64_t next_id_ = 0;
  int64_t most_mapped_ = 0;
};

TEST_F(ElasticMemory, FollowsTheLoadFromLongContextsToManyStatesAndBack) {
  make(MambaCacheMode::kNone);
  serve(30, 6000);
  const int64_t pages_at_most = resident_bytes(attention_);
  EXPECT_GT(pages_at_most, kBudget * 3 / 4);
  serve(800, 8);
  const int64_t states_at_most = resident_bytes(states_);
  EXPECT_GT(states_at_most, kBudget * 3 / 4);
  EXPECT_LT(resident_bytes(attention_), pages_at_most / 10);
  serve(30, 6000);
  EXPECT_GT(resident_bytes(attention_), kBudget * 3 / 4);
  EXPECT_LT(resident_bytes(states_), states_at_most / 10);
  EXPECT_LE(most_mapped_, kBudget + kSlack);
  while (!sequences_.empty()) end_oldest();
  EXPECT_LT(resident_bytes(states_) + resident_bytes(attention_), kBudget / 10);
}

TEST_F(ElasticMemory, CachedPrefixesGiveTheirMemoryToTheKindThatGrows) {
  make(MambaCacheMode::kAuto);
  serve(30, 6000);
  while (!sequences_.empty()) end_oldest();
  const int64_t pages_at_most = resident_bytes(attention_);
  EXPECT_GT(pages_at_most, kBudget / 2);
  serve(1200, 17);
  while (!sequences_.empty()) end_oldest();
  EXPECT_GT(resident_bytes(states_), kBudget / 2);
  // Short prompts keep pages of their own.
  const int64_t own = cache_->attention_bytes();
  EXPECT_LT(resident_bytes(attention_) - own, pages_at_most / 10);
  EXPECT_LE(most_mapped_, kBudget + kBudget / 8 + kSlack);
  EXPECT_EQ(cache_->audit({}), "");
  cache_->clear_prefixes();
  EXPECT_LT(resident_bytes(states_) + resident_bytes(attention_), kBudget / 10);
}

TEST_F(ElasticMemory, OneSequenceIsEnoughToStartAndOneByteLessIsRefusedWithTheNumber) {
  make(MambaCacheMode::kAuto);
  const int64_t least = cache_->bytes_for(1);
  StateCacheOptions options;
  options.num_slots = 10;
  options.memory_bytes = least;
  EXPECT_NO_THROW(StateCache(config_, cpu_device(), options));
  options.memory_bytes = least - 1;
  try {
    StateCache cache(config_, cpu_device(), options);
    FAIL() << "no sequence fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("allow " + std::to_string(least) + " bytes"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace coluber
