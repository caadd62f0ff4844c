// SPDX-License-Identifier: Apache-2.0
//
// What may be asked beside plain sampling: log-probabilities of the prompt, pooled hidden states, biased, allowed and
// constrained tokens; each against what a session shows of the same model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::logits_of;
using families::options_for;
using families::prompt_of;

std::vector<RequestOutput> run_one(Engine& engine, Request request) {
  engine.add_request(std::move(request));
  std::vector<RequestOutput> outputs;
  while (engine.has_unfinished_requests())
    for (RequestOutput& output : engine.step()) outputs.push_back(std::move(output));
  EXPECT_EQ(engine.audit(), "");
  return outputs;
}

std::vector<int32_t> all_ids(const std::vector<RequestOutput>& outputs) {
  std::vector<int32_t> ids;
  for (const RequestOutput& output : outputs)
    for (const TokenOutput& token : output.tokens) ids.push_back(token.id);
  return ids;
}

double logprob(std::span<const float> logits, int32_t id) {
  const double maximum = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - maximum);
  return static_cast<double>(logits[static_cast<size_t>(id)]) - maximum - std::log(sum);
}

class PromptReading : public testing::TestWithParam<std::string> {
 protected:
  static EngineOptions options() {
    EngineOptions options = options_for(GetParam());
    options.block_size = 4;
    options.max_num_batched_tokens = 8;  // prompts take several steps
    options.kv_cache_memory_bytes = int64_t{64} << 20;
    return options;
  }
};

TEST_P(PromptReading, TellsEachPromptTokensLogProbabilityAlsoWhereThePromptIsCached) {
  auto engine = Engine::load(options());
  const std::vector<int32_t> prompt = prompt_of(21);
  auto session = engine->open_session();
  const std::vector<float> logits = logits_of(*session, prompt);
  const size_t vocab = session->last_logits().size();
  session.reset();
  for (const int64_t max_tokens : {3, 0}) {
    Request request{prompt, greedy(max_tokens)};
    request.sampling.prompt_logprobs = 2;
    const std::vector<RequestOutput> outputs = run_one(*engine, request);
    ASSERT_FALSE(outputs.empty());
    EXPECT_EQ(outputs.back().finish_reason, FinishReason::kLength);
    EXPECT_EQ(std::ssize(all_ids(outputs)), max_tokens);
    EXPECT_EQ(outputs.front().cached_tokens, 0);
    const std::vector<TokenOutput>& scored = outputs.front().prompt_tokens_logprobs;
    ASSERT_EQ(scored.size(), prompt.size());
    EXPECT_EQ(scored[0].id, prompt[0]);
    EXPECT_TRUE(scored[0].top_logprobs.empty());
    for (size_t i = 1; i < prompt.size(); ++i) {
      const std::span<const float> row = std::span(logits).subspan((i - 1) * vocab, vocab);
      EXPECT_EQ(scored[i].id, prompt[i]);
      EXPECT_NEAR(scored[i].logprob, logprob(row, prompt[i]), 1e-3) << i;
      ASSERT_EQ(scored[i].top_logprobs.size(), 2u);
      EXPECT_GE(scored[i].top_logprobs[0].logprob, scored[i].top_logprobs[1].logprob);
      EXPECT_NEAR(scored[i].top_logprobs[0].logprob,
                  logprob(row, static_cast<int32_t>(std::ranges::max_element(row) - row.begin())), 1e-3);
    }
  }
}

TEST_P(PromptReading, PoolsTheLastHiddenStates) {
  auto engine = Engine::load(options());
  const std::vector<int32_t> prompt = prompt_of(21);
  std::vector<float> last;
  std::vector<double> sum;
  auto session = engine->open_session();
  session->set_hidden_sink([&](int index, const float* values, int64_t rows, int64_t cols) {
    if (index != engine->model_info().num_layers) return;
    sum.resize(static_cast<size_t>(cols), 0.0);
    for (int64_t i = 0; i < rows * cols; ++i) sum[static_cast<size_t>(i % cols)] += static_cast<double>(values[i]);
    last.assign(values + (rows - 1) * cols, values + rows * cols);
  });
  session->extend(prompt);
  ASSERT_FALSE(last.empty());
  session.reset();
  for (int round = 0; round < 2; ++round) {              // the second finds the first in the cache
    engine->add_request({prompt_of(13, 7), greedy(4)});  // somebody else in the batch
    Request request{prompt, greedy(1)};
    request.pooling = Pooling::kLast;
    const RequestId at_end = engine->add_request(request);
    request.pooling = Pooling::kMean;
    const RequestId mean = engine->add_request(request);
    int seen = 0;
    while (engine->has_unfinished_requests())
      for (const RequestOutput& output : engine->step()) {
        if (output.id != at_end && output.id != mean) continue;
        ++seen;
        EXPECT_EQ(output.finish_reason, FinishReason::kStop) << output.error;
        EXPECT_TRUE(output.tokens.empty());
        ASSERT_EQ(output.embedding.size(), last.size());
        for (size_t i = 0; i < last.size(); ++i)
          EXPECT_NEAR(output.embedding[i], output.id == at_end ? last[i] : sum[i] / 21.0, 2e-3) << i;
      }
    EXPECT_EQ(seen, 2);
    EXPECT_EQ(engine->audit(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PromptReading, testing::ValuesIn(families::names()),
                         [](const auto& param) { return param.param; });

// Only multiples of `step`, and the end after `length` of them.
class Multiples : public TokenConstraint {
 public:
  Multiples(int32_t step, int64_t length) : step_(step), length_(length) {}
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Multiples>(step_, length_); }
  void fill_mask(std::span<uint32_t> bitmask) override {
    for (size_t i = 0; i < bitmask.size() * 32; ++i)
      if (step_ == 0 || i % static_cast<size_t>(step_) != 0) bitmask[i / 32] &= ~(uint32_t{1} << (i % 32));
  }
  bool accept(int32_t token) override {
    ++seen_;
    return token % step_ == 0;
  }
  bool is_terminated() const override { return seen_ >= length_; }

 private:
  int32_t step_;
  int64_t length_, seen_ = 0;
};

TEST(Constraints, HoldForEachAnswerOfARequestAlone) {
  auto engine = Engine::load(options_for("lfm2"));
  Request request{prompt_of(12), greedy(50)};
  request.sampling.temperature = 3.0f;
  request.sampling.seed = 5;
  request.n = 3;
  request.constraint = std::make_shared<Multiples>(7, 6);
  const std::vector<RequestOutput> outputs = run_one(*engine, request);
  const std::vector<int32_t> ids = all_ids(outputs);
  EXPECT_EQ(ids.size(), 18u);
  EXPECT_TRUE(std::ranges::all_of(ids, [](int32_t id) { return id % 7 == 0; }));
  EXPECT_GT(std::ranges::count_if(ids, [&](int32_t id) { return id != ids.front(); }), 0);
  for (const RequestOutput& output : outputs)
    if (output.finish_reason != FinishReason::kNone) {
      EXPECT_EQ(output.finish_reason, FinishReason::kStop);
    }
}

TEST(Constraints, ThatAllowNothingEndTheirAnswerAndNobodyElses) {
  auto engine = Engine::load(options_for("lfm2"));
  Request request{prompt_of(12), greedy(5)};
  const std::vector<int32_t> expected = all_ids(run_one(*engine, request));
  const RequestId good = engine->add_request(request);
  request.constraint = std::make_shared<Multiples>(0, 6);
  const RequestId bad = engine->add_request(request);
  std::vector<int32_t> ids;
  std::string error;
  while (engine->has_unfinished_requests())
    for (const RequestOutput& output : engine->step()) {
      if (output.id == bad) error = output.error;
      if (output.id == good)
        for (const TokenOutput& token : output.tokens) ids.push_back(token.id);
    }
  EXPECT_EQ(ids, expected);
  EXPECT_NE(error.find("no token is left"), std::string::npos) << error;
}

TEST(Biases, ChangeWhatIsChosenAndNotWhatIsTold) {
  auto engine = Engine::load(options_for("lfm2"));
  Request request{prompt_of(12), greedy(4)};
  request.sampling.logprobs = 0;
  const std::vector<RequestOutput> plain = run_one(*engine, request);
  const int32_t first = plain.front().tokens.front().id;
  request.sampling.logit_bias = {{77, 100.0f}};
  const std::vector<int32_t> forced = all_ids(run_one(*engine, request));
  EXPECT_EQ(forced, std::vector<int32_t>(4, 77));
  request.sampling.logit_bias = {{first, -100.0f}};
  const std::vector<RequestOutput> other = run_one(*engine, request);
  EXPECT_NE(other.front().tokens.front().id, first);
  EXPECT_LT(other.front().tokens.front().logprob, plain.front().tokens.front().logprob);
  request.sampling.logit_bias.clear();
  request.sampling.allowed_token_ids = {3, 5, 8};
  for (const int32_t id : all_ids(run_one(*engine, request))) EXPECT_TRUE(id == 3 || id == 5 || id == 8) << id;
}

TEST(Biases, AreCheckedWhereTheyEnter) {
  auto engine = Engine::load(options_for("lfm2"));
  const auto problem = [&](const std::function<void(SamplingParams&)>& change) {
    Request request{prompt_of(5), greedy(3)};
    change(request.sampling);
    try {
      engine->add_request(request);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(problem([](auto& s) { s.logit_bias = {{-1, 0.0f}}; }).find("found -1"), std::string::npos);
  EXPECT_NE(problem([](auto& s) { s.logit_bias = {{1, 101.0f}}; }).find("found 101 for token 1"), std::string::npos);
  EXPECT_NE(problem([](auto& s) { s.logit_bias = {{1, 1.0f}, {1, 2.0f}}; }).find("twice"), std::string::npos);
  EXPECT_NE(problem([](auto& s) { s.allowed_token_ids = {1 << 30}; }).find("allowed_token_ids"), std::string::npos);
  EXPECT_NE(problem([](auto& s) { s.max_tokens = 0; }).find("max_tokens"), std::string::npos);
}

}  // namespace
}  // namespace coluber
