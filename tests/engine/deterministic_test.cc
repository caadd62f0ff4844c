// SPDX-License-Identifier: Apache-2.0
//
// With EngineOptions::deterministic no bit depends on how a prompt was cut, on who else is in the batch, or on how many
// threads compute.
#include <gtest/gtest.h>

#include <map>

#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::logits_of;
using families::options_for;
using families::prompt_of;

class Deterministic : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Engine> load(int threads = 2) {
    EngineOptions options = options_for(GetParam());
    options.deterministic = true;
    options.num_threads = threads;
    options.max_num_seqs = 64;
    return Engine::load(options);
  }
  // Tokens and the logarithms of their probabilities, request by request.
  using Answers = std::map<RequestId, std::vector<std::pair<int32_t, float>>>;
  static Answers run_all(Engine& engine) {
    Answers answers;
    while (engine.has_unfinished_requests())
      for (const RequestOutput& output : engine.step()) {
        EXPECT_NE(output.finish_reason, FinishReason::kError) << output.error;
        for (const TokenOutput& token : output.tokens)
          for (const TokenLogprob& top : token.top_logprobs) answers[output.id].emplace_back(top.id, top.logprob);
      }
    return answers;
  }
  static SamplingParams with_logprobs(int64_t tokens) {
    SamplingParams params = greedy(tokens);
    params.logprobs = 20;
    return params;
  }
};

TEST_P(Deterministic, NoCutOfAPromptChangesABit) {
  auto engine = load();
  const auto prompt = prompt_of(150);
  auto whole = engine->open_session();
  const std::vector<float> expected = logits_of(*whole, prompt);
  for (int64_t chunk : {1, 2, 3, 7, 16, 63, 64, 65, 149}) {
    auto parts = engine->open_session();
    EXPECT_EQ(logits_of(*parts, prompt, chunk), expected) << "in chunks of " << chunk;
  }
}

TEST_P(Deterministic, NeitherNeighboursNorThreadsChangeABit) {
  auto engine = load();
  std::vector<Answers::mapped_type> alone;
  for (uint32_t i = 0; i < 12; ++i) {
    engine->add_request({prompt_of(1 + 13 * i, i + 1), with_logprobs(8)});
    alone.push_back(run_all(*engine).begin()->second);
  }
  for (int threads : {1, 2, 3}) {
    auto other = load(threads);
    std::vector<RequestId> ids;
    for (uint32_t i = 0; i < 12; ++i)
      ids.push_back(other->add_request({prompt_of(1 + 13 * i, i + 1), with_logprobs(8)}));
    const Answers together = run_all(*other);
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(together.at(ids[i]), alone[i]) << "request " << i << " with " << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Deterministic, testing::ValuesIn(families::names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace coluber
