// SPDX-License-Identifier: Apache-2.0
//
// Beam search of the engine against one that computes every hypothesis from its first token, has no cache and prunes
// nothing: the same answers in the same order, alone and beside others, in pools that are too small, and no slot stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::options_for;
using families::prompt_of;

struct Asked {
  int64_t width = 3, n = 3, max_tokens = 6, min_tokens = 0;
  double length_penalty = 1.0;
  bool early_stopping = false;
  std::vector<int32_t> stop_ids = {};
};

struct Hypothesis {
  std::vector<int32_t> ids;
  double sum = 0.0, score = 0.0;
  FinishReason reason = FinishReason::kNone;
};

class Naive {
 public:
  Naive(Engine& engine, std::vector<int32_t> prompt, Asked asked)
      : session_(engine.open_session()), prompt_(std::move(prompt)), asked_(std::move(asked)) {}

  std::vector<Hypothesis> search() {
    std::vector<Hypothesis> live(1);
    for (int64_t step = 0; step < asked_.max_tokens && !live.empty(); ++step) {
      std::vector<Hypothesis> next;
      for (const Hypothesis& hypothesis : live) extend(hypothesis, next);
      std::ranges::stable_sort(next, std::greater<>(), &Hypothesis::sum);
      if (std::ssize(next) > asked_.width) next.resize(static_cast<size_t>(asked_.width));
      live = std::move(next);
      if (asked_.early_stopping && std::ssize(ended_) >= asked_.width && step + 1 < asked_.max_tokens) live.clear();
    }
    for (Hypothesis& hypothesis : live) end(hypothesis, FinishReason::kLength);
    std::ranges::stable_sort(ended_, std::greater<>(), &Hypothesis::score);
    ended_.resize(static_cast<size_t>(std::min(asked_.n, std::ssize(ended_))));
    return ended_;
  }

 private:
  std::vector<double> logprobs(const std::vector<int32_t>& ids) {
    std::vector<int32_t> all = prompt_;
    all.insert(all.end(), ids.begin(), ids.end());
    session_->reset();
    session_->extend(all);
    const std::span<const float> logits = session_->last_logits();
    const double maximum = *std::ranges::max_element(logits);
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x) - maximum);
    std::vector<double> out;
    for (const float x : logits) out.push_back(static_cast<double>(x) - maximum - std::log(sum));
    return out;
  }

  void extend(const Hypothesis& from, std::vector<Hypothesis>& next) {
    const std::vector<double> scores = logprobs(from.ids);
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&](int32_t id) { return scores[static_cast<size_t>(id)]; });
    int64_t seen = 0;
    for (const int32_t id : order) {
      const bool ends = std::ranges::find(asked_.stop_ids, id) != asked_.stop_ids.end();
      if (ends && std::ssize(from.ids) < asked_.min_tokens) continue;
      if (seen++ == 2 * asked_.width) return;
      Hypothesis to = from;
      to.ids.push_back(id);
      to.sum += scores[static_cast<size_t>(id)];
      if (ends)
        end(to, FinishReason::kStop);
      else
        next.push_back(to);
    }
  }

  void end(Hypothesis hypothesis, FinishReason reason) {
    hypothesis.reason = reason;
    const auto tokens = prompt_.size() + hypothesis.ids.size() - (reason == FinishReason::kStop ? 1 : 0);
    hypothesis.score = hypothesis.sum / std::pow(static_cast<double>(tokens), asked_.length_penalty);
    ended_.push_back(std::move(hypothesis));
  }

  std::unique_ptr<Session> session_;
  std::vector<int32_t> prompt_;
  Asked asked_;
  std::vector<Hypothesis> ended_;
};

Request request_of(const std::vector<int32_t>& prompt, const Asked& asked) {
  Request request;
  request.prompt_ids = prompt;
  request.sampling = greedy(asked.max_tokens);
  request.sampling.min_tokens = asked.min_tokens;
  request.sampling.stop_token_ids = asked.stop_ids;
  request.n = asked.n;
  request.beam_width = asked.width;
  request.length_penalty = asked.length_penalty;
  request.early_stopping = asked.early_stopping;
  return request;
}

using Outputs = std::map<RequestId, std::vector<RequestOutput>>;

Outputs run_all(Engine& engine) {
  Outputs outputs;
  while (engine.has_unfinished_requests()) {
    for (RequestOutput& output : engine.step()) outputs[output.id].push_back(std::move(output));
    EXPECT_EQ(engine.audit(), "");
    EXPECT_EQ(engine.stats().leaked_slots, 0);
  }
  return outputs;
}

void expect_found(const std::vector<RequestOutput>& found, const std::vector<Hypothesis>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE("answer " + std::to_string(i));
    EXPECT_EQ(found[i].error, "");
    EXPECT_EQ(found[i].index, static_cast<int64_t>(i));
    EXPECT_EQ(ids_of(found[i]), expected[i].ids);
    EXPECT_EQ(found[i].finish_reason, expected[i].reason);
    EXPECT_EQ(found[i].request_finished, i + 1 == found.size());
    EXPECT_NEAR(found[i].cumulative_logprob, expected[i].sum, 1e-3);
  }
}

// Tokens that some hypothesis will meet, so that answers end early.
std::vector<int32_t> likely_ids(Engine& engine, const std::vector<int32_t>& prompt) {
  Request request = request_of(prompt, {.width = 4, .n = 4, .max_tokens = 4});
  const RequestId id = engine.add_request(request);
  const Outputs outputs = run_all(engine);
  const std::vector<RequestOutput>& answers = outputs.at(id);
  return {answers.at(1).tokens.at(1).id, answers.at(3).tokens.at(2).id};
}

EngineOptions beam_options(const std::string& name) {
  EngineOptions options = options_for(name);
  options.deterministic = true;
  options.block_size = 4;
  options.max_num_batched_tokens = 16;
  options.kv_cache_memory_bytes = int64_t{64} << 20;
  return options;
}

class Beams : public testing::TestWithParam<std::string> {};

TEST_P(Beams, GiveWhatASearchFromScratchGives) {
  auto engine = Engine::load(beam_options(GetParam()));
  const std::vector<int32_t> prompt = prompt_of(9, 5);
  const std::vector<int32_t> stops = likely_ids(*engine, prompt);
  for (const Asked& asked :
       {Asked{.width = 3, .n = 2, .max_tokens = 5},
        Asked{.width = 4, .n = 4, .max_tokens = 6, .length_penalty = 2.0, .stop_ids = stops},
        Asked{.width = 2, .n = 1, .max_tokens = 6, .min_tokens = 2, .length_penalty = 0.0, .stop_ids = stops},
        Asked{
            .width = 3, .n = 3, .max_tokens = 6, .length_penalty = -1.0, .early_stopping = true, .stop_ids = stops}}) {
    SCOPED_TRACE("width " + std::to_string(asked.width) + ", penalty " + std::to_string(asked.length_penalty));
    const RequestId id = engine->add_request(request_of(prompt, asked));
    const Outputs outputs = run_all(*engine);
    expect_found(outputs.at(id), Naive(*engine, prompt, asked).search());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Beams, testing::ValuesIn(families::names()),
                         [](const auto& param) { return param.param; });

std::vector<int32_t> ids_together(const std::vector<RequestOutput>& outputs) {
  std::vector<int32_t> ids;
  for (const RequestOutput& output : outputs)
    for (const TokenOutput& token : output.tokens) ids.push_back(token.id);
  return ids;
}

std::vector<int32_t> greedy_alone(Engine& engine, const std::vector<int32_t>& prompt) {
  const RequestId id = engine.add_request({prompt, greedy(20)});
  const Outputs outputs = run_all(engine);
  return ids_together(outputs.at(id));
}

// Room for few more than one search needs: two searches and sampled requests take each other's places.
TEST(BeamsInATinyPool, GiveWhatTheyGiveAlone) {
  for (const std::string& name : {std::string("lfm2"), std::string("mamba2"), std::string("jamba_bf16")}) {
    if (std::ranges::find(families::names(), name) == families::names().end()) continue;
    for (const auto mode : {PreemptionMode::kPark, PreemptionMode::kRecompute}) {
      SCOPED_TRACE(name + ", " + std::string(preemption_mode_name(mode)));
      auto roomy = Engine::load(beam_options(name));
      const Asked asked{.width = 4, .n = 4, .max_tokens = 8};
      const std::vector<int32_t> first = prompt_of(11, 1), second = prompt_of(14, 2), sampled = prompt_of(12, 3);
      const std::vector<int32_t> expected = greedy_alone(*roomy, sampled);
      roomy->clear_prefix_cache();
      roomy->add_request(request_of(second, asked));
      run_all(*roomy);
      EngineOptions options = beam_options(name);
      options.preemption = mode;
      options.max_num_seqs = 6;
      options.scheduling_policy = SchedulingPolicy::kPriority;
      const EngineStats peak = roomy->stats();
      // The least memory in which each of them could run alone.
      std::unique_ptr<Engine> engine;
      RequestId a = 0, b = 0, c = 0, d = 0;
      int64_t slots = 0;
      for (int64_t quarters = 4; d == 0; ++quarters) {
        ASSERT_LT(quarters, 40);
        options.kv_cache_memory_bytes = (peak.peak_recurrent_bytes + peak.peak_attention_bytes) * quarters / 4;
        try {
          engine = Engine::load(options);
          slots = engine->free_state_slots();
          Request late = request_of(second, asked);
          late.priority = 1;
          c = engine->add_request(late);
          for (int step = 0; step < 4; ++step) ASSERT_TRUE(engine->step().empty());  // its beams have forked
          a = engine->add_request(request_of(first, asked));
          b = engine->add_request({sampled, greedy(20)});
          d = engine->add_request(request_of(first, {.width = 3, .n = 1, .max_tokens = 16}));
        } catch (const Error& error) {
          ASSERT_TRUE(error.code() == ErrorCode::kResourceExhausted || error.code() == ErrorCode::kOutOfMemory)
              << error.what();
        }
      }
      Outputs outputs;
      while (engine->has_unfinished_requests()) {
        for (RequestOutput& output : engine->step()) outputs[output.id].push_back(std::move(output));
        ASSERT_EQ(engine->audit(), "");
        if (outputs.contains(a)) engine->abort(d);
      }
      expect_found(outputs.at(a), Naive(*roomy, first, asked).search());
      expect_found(outputs.at(c), Naive(*roomy, second, asked).search());
      EXPECT_EQ(ids_together(outputs.at(b)), expected);
      EXPECT_EQ(engine->stats().leaked_slots, 0);
      EXPECT_GT(engine->stats().preemptions, 0);
      engine->clear_prefix_cache();
      EXPECT_EQ(engine->free_state_slots(), slots);
    }
  }
}

TEST(BeamsAreRefused, WhereTheyCannotRun) {
  auto engine = Engine::load(beam_options("lfm2"));
  const auto problem = [&](const std::function<void(Request&)>& change) {
    Request request = request_of(prompt_of(5), {});
    change(request);
    try {
      engine->add_request(request);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(problem([](Request& r) { r.n = 4; }).find("n must be at most beam_width = 3"), std::string::npos);
  EXPECT_NE(problem([](Request& r) { r.beam_width = 9; }).find("max_num_seqs = 8"), std::string::npos);
  EXPECT_NE(problem([](Request& r) { r.beam_width = -1; }).find("found -1"), std::string::npos);
  EXPECT_NE(problem([](Request& r) { r.sampling.repetition_penalty = 1.5f; }).find("penalties"), std::string::npos);
  EXPECT_NE(problem([](Request& r) { r.sampling.logit_bias = {{1, 1.0f}}; }).find("logit_bias"), std::string::npos);
  EXPECT_NE(problem([](Request& r) { r.length_penalty = NAN; }).find("length_penalty"), std::string::npos);
  EXPECT_FALSE(engine->has_unfinished_requests());
}

}  // namespace
}  // namespace coluber
