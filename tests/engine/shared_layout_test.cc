// SPDX-License-Identifier: Apache-2.0
//
// Cache layout shared: every family whose pages can be made equal answers from it as from the elastic one, hit or miss,
// in pools from one sequence on; the others are refused with the numbers.
#include <gtest/gtest.h>

#include "layers/cache_binding.h"
#include "soak_traffic.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::options_for;
using families::prompt_of;

// Families that no block size fits: why is in the message.
const std::set<std::string>& refused() {
  static const std::set<std::string> kRefused = {"inkling"};  // attention layers of several kinds
  return kRefused;
}

class SharedLayout : public testing::TestWithParam<std::string> {
 protected:
  static EngineOptions options(CacheLayout layout) {
    EngineOptions options = options_for(GetParam());
    options.cache_layout = layout;
    options.poison_pools = true;
    options.verify_states = true;
    options.max_num_batched_tokens = 64;
    options.kv_cache_memory_bytes = int64_t{64} << 20;
    return options;
  }
  // Loads, or says that the family cannot be so.
  static std::unique_ptr<Engine> load() {
    try {
      return Engine::load(options(CacheLayout::kShared));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
      const std::string message = error.what();
      EXPECT_NE(message.find("cache layout shared"), std::string::npos) << message;
      EXPECT_NE(message.find("bytes"), std::string::npos) << message;
      EXPECT_NE(message.find("--cache-layout elastic"), std::string::npos) << message;
      return nullptr;
    }
  }
  static RequestOutput run(Engine& engine, const std::vector<int32_t>& prompt) {
    engine.add_request({prompt, greedy(8)});
    RequestOutput answer;
    while (engine.has_unfinished_requests())
      for (RequestOutput& output : engine.step()) {
        EXPECT_NE(output.finish_reason, FinishReason::kError) << output.error;
        std::vector<TokenOutput> tokens = std::move(answer.tokens);
        for (TokenOutput& token : output.tokens) tokens.push_back(std::move(token));
        answer = std::move(output);
        answer.tokens = std::move(tokens);
      }
    EXPECT_EQ(engine.audit(), "");
    return answer;
  }
};

TEST_P(SharedLayout, HitsAndMissesAnswerAsTheElasticLayout) {
  const auto engine = load();
  ASSERT_EQ(engine == nullptr, refused().contains(GetParam()));
  if (!engine) GTEST_SKIP() << "its pages cannot be made equal";
  const auto elastic = Engine::load(options(CacheLayout::kElastic));
  const int64_t slots = engine->free_state_slots();
  const int64_t pages = engine->free_attention_pages();
  auto prompt = prompt_of(150);
  for (const int64_t repeat : {0, 1}) {
    const RequestOutput found = run(*engine, prompt);
    EXPECT_EQ(ids_of(found), ids_of(run(*elastic, prompt))) << repeat;
    EXPECT_EQ(found.cached_tokens > 100, repeat == 1);
  }
  prompt.insert(prompt.end(), 20, 7);
  EXPECT_EQ(ids_of(run(*engine, prompt)), ids_of(run(*elastic, prompt)));
  prompt[90] = (prompt[90] + 1) % 250;
  const RequestOutput edited = run(*engine, prompt);
  EXPECT_EQ(edited.common_tokens, 90);
  EXPECT_EQ(ids_of(edited), ids_of(run(*elastic, prompt)));
  engine->clear_prefix_cache();
  EXPECT_EQ(engine->free_state_slots(), slots);
  EXPECT_EQ(engine->free_attention_pages(), pages);
  EXPECT_EQ(engine->audit(), "");
}

TEST_P(SharedLayout, RandomTrafficInSmallPoolsIsAnsweredAsByOneSequenceAlone) {
  if (!load()) GTEST_SKIP() << "its pages cannot be made equal";
  for (const uint64_t seed : {11, 12}) {
    soak::Trace trace;
    trace.family = GetParam() + std::string(families::kShared);
    trace.seed = seed;
    trace.operations = 60;
    soak::Traffic traffic(trace);
    EXPECT_EQ(traffic.run(), "") << traffic.describe();
  }
}

// Every size that the layers can be shared out to, whatever the tokens of a page.
TEST_P(SharedLayout, SharesOfRanksFindALayoutToo) {
  for (const int64_t ranks : {1, 2, 4, 8}) {
    const bool is_possible =
        !refused().contains(GetParam()) && families::can_be_shared(options(CacheLayout::kElastic), ranks);
    for (const int64_t block : {16, 64, 128}) {
      EngineOptions share = options(CacheLayout::kShared);
      share.tensor_parallel_size = ranks;
      share.block_size = block;
      SCOPED_TRACE(std::to_string(ranks) + " ranks, blocks of " + std::to_string(block));
      try {
        const ModelDescription model = describe_model(share);
        const CacheLayouts layouts = make_shared_cache_layouts(*model.config);
        EXPECT_TRUE(is_possible);
        for (const StateLayout::Layer& layer : layouts.state.layers)
          EXPECT_LE(layer.offset + layer.page_bytes, layouts.state.slot_bytes) << layer.layer_name;
        if (layouts.attention.page_bytes > 0) {
          EXPECT_EQ(layouts.state.slot_bytes, layouts.blocks_per_slot * layouts.attention.page_bytes);
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
        EXPECT_FALSE(is_possible) << error.what();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SharedLayout, testing::ValuesIn(families::names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace coluber
