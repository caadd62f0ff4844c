// SPDX-License-Identifier: Apache-2.0
//
// What must hold for every family: no trace of what a pool held before, no matter how a prompt is cut, who else is in
// the batch, or whose slot it was.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "families.h"
#include "tensor/cuda_library.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::logits_of;
using families::options_for;
using families::prompt_of;

class Invariants : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string missing;
    if (options_for(GetParam()).device != "cpu" && CudaLibrary::find(&missing) == nullptr) GTEST_SKIP() << missing;
  }
  std::unique_ptr<Engine> load(bool poison = false) {
    EngineOptions options = options_for(GetParam());
    options.poison_pools = poison;
    return Engine::load(options);
  }
  static void expect_close(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-4f) << what << " at " << i;
  }
  // Runs requests together to their ends.
  static std::map<RequestId, std::vector<int32_t>> run_all(Engine& engine) {
    std::map<RequestId, std::vector<int32_t>> outputs;
    while (engine.has_unfinished_requests())
      for (const RequestOutput& output : engine.step()) {
        EXPECT_NE(output.finish_reason, FinishReason::kError) << output.error;
        for (const TokenOutput& token : output.tokens) outputs[output.id].push_back(token.id);
      }
    return outputs;
  }
};

TEST_P(Invariants, APoolFullOfNaNChangesNothing) {
  auto clean = load(false);
  auto poisoned = load(true);
  for (int64_t length : {1, 2, 3, 5, 40}) {
    const auto prompt = prompt_of(length);
    auto a = clean->open_session();
    auto b = poisoned->open_session();
    EXPECT_EQ(logits_of(*a, prompt), logits_of(*b, prompt)) << "bit for bit, prompt " << length;
    EXPECT_EQ(ids_of(a->generate(greedy(20))), ids_of(b->generate(greedy(20))));
  }
}

TEST_P(Invariants, PrefillOfTheWholeEqualsPrefillOfItsParts) {
  auto engine = load(true);
  const auto prompt = prompt_of(131);
  auto whole = engine->open_session();
  const std::vector<float> expected = logits_of(*whole, prompt);
  for (int64_t cut : {1, 2, 3, 4, 63, 64, 65, 128, 130}) {
    auto parts = engine->open_session();
    std::vector<float> logits = logits_of(*parts, std::span(prompt).first(static_cast<size_t>(cut)));
    const std::vector<float> rest = logits_of(*parts, std::span(prompt).subspan(static_cast<size_t>(cut)));
    logits.insert(logits.end(), rest.begin(), rest.end());
    expect_close(logits, expected, "cut prompt");
  }
}

TEST_P(Invariants, SequencesInOneBatchEqualEachAlone) {
  auto engine = load(true);
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 6; ++i) prompts.push_back(prompt_of(std::vector<int64_t>{1, 9, 2, 77, 33, 3}[i], i + 1));
  std::vector<std::vector<int32_t>> alone;
  for (const auto& prompt : prompts) {
    engine->add_request({prompt, greedy(24)});
    alone.push_back(run_all(*engine).begin()->second);
  }
  std::vector<RequestId> ids;
  for (const auto& prompt : prompts) ids.push_back(engine->add_request({prompt, greedy(24)}));
  const auto together = run_all(*engine);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together.at(ids[i]), alone[i]) << "request " << i;
}

TEST_P(Invariants, RequestsThatArriveWhileOthersDecodeChangeNobody) {
  auto engine = load(true);
  engine->add_request({prompt_of(20, 1), greedy(30)});
  const auto alone_a = run_all(*engine).begin()->second;
  engine->add_request({prompt_of(90, 2), greedy(10)});
  const auto alone_b = run_all(*engine).begin()->second;

  std::map<RequestId, std::vector<int32_t>> outputs;
  const RequestId a = engine->add_request({prompt_of(20, 1), greedy(30)});
  for (int i = 0; i < 5; ++i)
    for (const RequestOutput& output : engine->step())
      for (const TokenOutput& token : output.tokens) outputs[output.id].push_back(token.id);
  const RequestId b = engine->add_request({prompt_of(90, 2), greedy(10)});
  for (const auto& [id, tokens] : run_all(*engine)) outputs[id].insert(outputs[id].end(), tokens.begin(), tokens.end());
  EXPECT_EQ(outputs.at(a), alone_a);
  EXPECT_EQ(outputs.at(b), alone_b);
}

TEST_P(Invariants, AReusedSlotIsAsGoodAsAFreshOne) {
  auto engine = load(false);
  auto fresh = engine->open_session();
  const std::vector<float> expected = logits_of(*fresh, prompt_of(40, 7));
  fresh.reset();
  for (int64_t length : {1, 3, 200}) {
    auto earlier = engine->open_session();
    earlier->extend(prompt_of(length, 3));
    earlier.reset();  // gives its slot and pages back with its state in them
    auto later = engine->open_session();
    EXPECT_EQ(logits_of(*later, prompt_of(40, 7)), expected) << "after a sequence of " << length;
  }
}

TEST_P(Invariants, AOneTokenPromptGivesTheSameAnswerEveryTime) {
  auto engine = load(true);
  engine->add_request({prompt_of(1, 5), greedy(16)});
  const auto expected = run_all(*engine).begin()->second;
  for (int repeat = 0; repeat < 20; ++repeat) {
    engine->add_request({prompt_of(50 + repeat, 6), greedy(3)});
    run_all(*engine);
    engine->add_request({prompt_of(1, 5), greedy(16)});
    EXPECT_EQ(run_all(*engine).begin()->second, expected);
  }
}

TEST_P(Invariants, ARollbackGoesBackToTheVeryState) {
  auto engine = load(true);
  auto session = engine->open_session();
  session->extend(prompt_of(30, 1));
  const SessionCheckpoint checkpoint = session->checkpoint();
  const std::vector<float> expected = logits_of(*session, prompt_of(12, 2));
  session->rollback(checkpoint);
  session->extend(prompt_of(25, 3));
  session->rollback(checkpoint);
  EXPECT_EQ(session->tokens().size(), 30u);
  EXPECT_EQ(logits_of(*session, prompt_of(12, 2)), expected);
}

TEST_P(Invariants, NothingLeaks) {
  auto engine = load(false);
  const int64_t slots = engine->free_state_slots();
  const int64_t pages = engine->free_attention_pages();
  for (int i = 0; i < 50; ++i) {
    const RequestId id = engine->add_request({prompt_of(5 + i, 1), greedy(4)});
    if (i % 3 == 0) engine->step();
    if (i % 3 != 2) engine->abort(id);
    auto session = engine->open_session();
    session->extend(prompt_of(3, 2));
    const SessionCheckpoint checkpoint = session->checkpoint();
    session->reset();
  }
  run_all(*engine);
  engine->clear_prefix_cache();
  EXPECT_EQ(engine->free_state_slots(), slots);
  EXPECT_EQ(engine->free_attention_pages(), pages);
}

INSTANTIATE_TEST_SUITE_P(Families, Invariants, testing::ValuesIn(families::names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Replaying, Invariants, testing::ValuesIn(families::replaying_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Sharing, Invariants, testing::ValuesIn(families::sharing_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(OnCuda, Invariants, testing::ValuesIn(families::names_on_cuda()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace coluber
