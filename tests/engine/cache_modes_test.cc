// SPDX-License-Identifier: Apache-2.0
//
// For every family: whatever was cached, preempted, parked or forked, the answers are those of one sequence computed
// alone without a cache, and nothing is left behind.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::options_for;
using families::prompt_of;

using Answers = std::map<RequestId, RequestOutput>;

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class CacheModes : public testing::TestWithParam<std::string> {
 protected:
  EngineOptions options(MambaCacheMode mode) {
    EngineOptions options = options_for(GetParam());
    options.poison_pools = true;
    options.mamba_cache_mode = mode;
    options.mamba_block_size = 32;
    options.max_num_batched_tokens = 64;
    options.kv_cache_memory_bytes = int64_t{64} << 20;
    options.verify_states = true;
    return options;
  }

  // One output a request, all its tokens together.
  static Answers run_all(Engine& engine) {
    Answers answers;
    while (engine.has_unfinished_requests())
      for (RequestOutput& output : engine.step()) {
        EXPECT_NE(output.finish_reason, FinishReason::kError) << output.error;
        RequestOutput& answer = answers[output.id * 1000 + output.index];
        std::vector<TokenOutput> tokens = std::move(answer.tokens);
        for (TokenOutput& token : output.tokens) tokens.push_back(std::move(token));
        answer = std::move(output);
        answer.tokens = std::move(tokens);
      }
    EXPECT_EQ(engine.stats().leaked_slots, 0);
    EXPECT_EQ(engine.audit(), "");
    return answers;
  }

  static RequestOutput run_one(Engine& engine, const std::vector<int32_t>& prompt, int64_t tokens = 16,
                               const std::string& salt = "") {
    Request request{prompt, with_logprobs(tokens)};
    request.cache_salt = salt;
    engine.add_request(std::move(request));
    return run_all(engine).begin()->second;
  }

  static SamplingParams with_logprobs(int64_t tokens) {
    SamplingParams params = greedy(tokens);
    params.logprobs = 2;
    return params;
  }

  // Equal tokens, and log-probabilities within what another order of sums may change. Where the two likeliest tokens
  // are as near as that, either may be chosen, and what follows differs.
  static void expect_same(const RequestOutput& found, const RequestOutput& expected, const std::string& what) {
    ASSERT_EQ(found.tokens.size(), expected.tokens.size()) << what;
    for (size_t i = 0; i < found.tokens.size(); ++i) {
      const auto& top = expected.tokens[i].top_logprobs;
      ASSERT_NEAR(found.tokens[i].top_logprobs[0].logprob, top[0].logprob, 2e-3f) << what << ", token " << i;
      if (found.tokens[i].id != expected.tokens[i].id) {
        ASSERT_LT(top[0].logprob - top[1].logprob, 1e-3f) << what << ", token " << i;
        return;
      }
    }
  }

  // An engine without a cache, one request at a time, whole prompts: the reference.
  RequestOutput alone(const std::vector<int32_t>& prompt, int64_t tokens = 16) {
    if (!reference_) {
      EngineOptions plain = options_for(GetParam());
      plain.enable_prefix_caching = false;
      plain.use_replayssm = ReplayMode::kOff;
      reference_ = Engine::load(plain);
    }
    return run_one(*reference_, prompt, tokens);
  }

  // Once nothing runs and the cache is cleared, all memory is free.
  static void expect_nothing_left(Engine& engine, int64_t slots, int64_t pages) {
    engine.clear_prefix_cache();
    EXPECT_EQ(engine.free_state_slots(), slots);
    EXPECT_EQ(engine.free_attention_pages(), pages);
    EXPECT_EQ(engine.audit(), "");
    EXPECT_EQ(engine.stats().leaked_slots, 0);
    EXPECT_EQ(engine.stats().broken_states, 0);
  }

  std::unique_ptr<Engine> reference_;
};

TEST_P(CacheModes, WarmEqualsColdInEveryMode) {
  const auto prompt = prompt_of(150, 1);
  const auto longer = joined(prompt, prompt_of(37, 2));
  auto edited = longer;
  edited[100] = (edited[100] + 1) % 250;
  for (const auto mode : {MambaCacheMode::kNone, MambaCacheMode::kAll, MambaCacheMode::kAlign, MambaCacheMode::kAuto}) {
    if (mode == MambaCacheMode::kAll && families::replays(GetParam())) continue;  // refused, see replay_test.cc
    // Blocks that hold a state are longer than these prompts.
    const bool has_blocks = mode == MambaCacheMode::kAll || mode == MambaCacheMode::kAlign;
    if (has_blocks && families::shares(GetParam())) continue;
    auto engine = Engine::load(options(mode));
    const std::string name(mamba_cache_mode_name(mode));
    const int64_t slots = engine->free_state_slots();
    const int64_t pages = engine->free_attention_pages();
    const RequestOutput cold = run_one(*engine, prompt);
    expect_same(cold, alone(prompt), name + " cold");
    EXPECT_EQ(cold.cached_tokens, 0);
    const RequestOutput warm = run_one(*engine, prompt);
    expect_same(warm, alone(prompt), name + " warm");
    const RequestOutput extended = run_one(*engine, longer);
    expect_same(extended, alone(longer), name + " extended");
    const RequestOutput changed = run_one(*engine, edited);
    expect_same(changed, alone(edited), name + " edited");
    if (mode == MambaCacheMode::kNone) {
      EXPECT_EQ(warm.miss_reason, MissReason::kDisabled);
      EXPECT_EQ(warm.cached_tokens, 0);
    } else {
      EXPECT_GE(warm.cached_tokens, 112) << name;
      EXPECT_EQ(warm.miss_reason, MissReason::kNone) << name;
      EXPECT_GE(extended.cached_tokens, 112) << name;
      EXPECT_LE(changed.cached_tokens, 100) << name;
      EXPECT_EQ(changed.common_tokens, 100) << name;
    }
    expect_nothing_left(*engine, slots, pages);
  }
}

// Every layer can leave its states inside a chunk, so none ends early for it.
TEST_P(CacheModes, KeepingStatesCutsNoPrompt) {
  const auto prompt = prompt_of(150, 1);
  const auto steps_in = [&](MambaCacheMode mode) {
    auto engine = Engine::load(options(mode));
    run_one(*engine, prompt, 1);
    return engine->stats().steps;
  };
  const int64_t uncut = steps_in(MambaCacheMode::kNone);
  for (const auto mode : {MambaCacheMode::kAll, MambaCacheMode::kAlign, MambaCacheMode::kAuto}) {
    if (mode == MambaCacheMode::kAll && families::replays(GetParam())) continue;  // refused, see replay_test.cc
    EXPECT_EQ(steps_in(mode), uncut) << mamba_cache_mode_name(mode);
  }
}

TEST_P(CacheModes, HitsAreRightAtEveryPromptLength) {
  auto engine = Engine::load(options(MambaCacheMode::kAuto));
  for (const int64_t length : {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129}) {
    const auto prompt = prompt_of(length, 3);
    for (int repeat = 0; repeat < 2; ++repeat)
      expect_same(run_one(*engine, prompt, 6), alone(prompt, 6),
                  "length " + std::to_string(length) + ", time " + std::to_string(repeat));
  }
}

TEST_P(CacheModes, TheNextTurnComputesOnlyWhatIsNew) {
  auto engine = Engine::load(options(MambaCacheMode::kAuto));
  std::vector<int32_t> transcript = prompt_of(70, 4);
  for (uint32_t turn = 0; turn < 4; ++turn) {
    const auto before = static_cast<int64_t>(transcript.size());
    const RequestOutput answer = run_one(*engine, transcript, 9);
    expect_same(answer, alone(transcript, 9), "turn " + std::to_string(turn));
    if (turn > 0) {
      EXPECT_EQ(answer.cached_tokens, before - 7 - 1) << "all but the new words and the last token of the answer";
    }
    transcript = joined(joined(transcript, ids_of(answer)), prompt_of(7, 10 + turn));
  }
}

TEST_P(CacheModes, AThirdRequestFindsWhereTwoParted) {
  auto engine = Engine::load(options(MambaCacheMode::kAuto));
  const auto shared = prompt_of(100, 5);
  const auto ask = [&](uint32_t user) { return joined(shared, prompt_of(40, 20 + user)); };
  EXPECT_EQ(run_one(*engine, ask(0)).miss_reason, MissReason::kNoCommonPrefix);
  const RequestOutput second = run_one(*engine, ask(1));
  EXPECT_GE(second.common_tokens, 100);
  for (uint32_t user = 2; user < 5; ++user) {
    const RequestOutput later = run_one(*engine, ask(user));
    EXPECT_GE(later.cached_tokens, 96) << "user " << user;
    expect_same(later, alone(ask(user)), "user " + std::to_string(user));
  }
}

TEST_P(CacheModes, PromptsThatArriveTogetherComputeWhatTheyShareOnce) {
  EngineOptions together = options(MambaCacheMode::kAuto);
  auto engine = Engine::load(together);
  const auto shared = prompt_of(160, 15);
  std::map<RequestId, std::vector<int32_t>> asked;
  for (uint32_t user = 0; user < 5; ++user) {
    const auto prompt = joined(shared, prompt_of(20, 90 + user));
    asked[engine->add_request({prompt, with_logprobs(4)})] = prompt;
  }
  const Answers answers = run_all(*engine);
  for (const auto& [id, prompt] : asked) expect_same(answers.at(id * 1000), alone(prompt, 4), std::to_string(id));
  EXPECT_LE(engine->stats().computed_tokens, 160 + 5 * (20 + 16 + 4));
}

TEST_P(CacheModes, TenantsShareNothing) {
  auto engine = Engine::load(options(MambaCacheMode::kAuto));
  const auto prompt = prompt_of(90, 6);
  run_one(*engine, prompt, 4, "a");
  const RequestOutput other = run_one(*engine, prompt, 4, "b");
  EXPECT_EQ(other.cached_tokens, 0);
  // What another tenant asked is the operator's business.
  EXPECT_EQ(other.miss_reason, MissReason::kNoCommonPrefix);
  EXPECT_EQ(other.common_tokens, 0);
  const auto count_of = [&](MissReason reason) { return engine->stats().miss_reasons[static_cast<size_t>(reason)]; };
  EXPECT_EQ(count_of(MissReason::kDifferentAdapterOrSalt), 1);
  EXPECT_GT(run_one(*engine, prompt, 4, "a").cached_tokens, 0);
  EngineOptions telling = options(MambaCacheMode::kAuto);
  telling.report_other_salts = true;
  engine = Engine::load(telling);
  run_one(*engine, prompt, 4, "a");
  EXPECT_EQ(run_one(*engine, prompt, 4, "b").miss_reason, MissReason::kDifferentAdapterOrSalt);
}

TEST_P(CacheModes, PreemptedRequestsAnswerAsIfNothingHadHappened) {
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 5; ++i) prompts.push_back(prompt_of(20 + 13 * i, 30 + i));
  for (const auto preemption : {PreemptionMode::kPark, PreemptionMode::kRecompute, PreemptionMode::kAuto})
    for (const auto mode : {MambaCacheMode::kNone, MambaCacheMode::kAuto}) {
      SCOPED_TRACE(std::string(preemption_mode_name(preemption)) + ", " + std::string(mamba_cache_mode_name(mode)));
      EngineOptions tiny = options(mode);
      tiny.preemption = preemption;
      tiny.scheduling_policy = SchedulingPolicy::kPriority;
      tiny.max_num_seqs = 2;
      tiny.max_num_batched_tokens = 16;
      auto engine = Engine::load(tiny);
      const int64_t slots = engine->free_state_slots();
      const int64_t pages = engine->free_attention_pages();
      std::map<RequestId, size_t> which;
      Answers answers;
      // Each goes before those that run already: the seats change hands in mid-prompt and in mid-answer.
      for (size_t i = 0; i < prompts.size(); ++i) {
        Request request{prompts[i], with_logprobs(12)};
        request.priority = -static_cast<int64_t>(i);
        which[engine->add_request(std::move(request))] = i;
        for (int steps = 0; steps < 3; ++steps) {
          for (RequestOutput& output : engine->step())
            for (TokenOutput& token : output.tokens) answers[output.id * 1000].tokens.push_back(token);
          ASSERT_EQ(engine->audit(), "") << "request " << i << ", step " << steps;
        }
      }
      while (engine->has_unfinished_requests())
        for (RequestOutput& output : engine->step()) {
          ASSERT_NE(output.finish_reason, FinishReason::kError) << output.error;
          ASSERT_EQ(engine->audit(), "");
          for (TokenOutput& token : output.tokens) answers[output.id * 1000].tokens.push_back(token);
        }
      const EngineStats stats = engine->stats();
      EXPECT_GT(stats.preemptions, 0);
      if (preemption == PreemptionMode::kPark) {
        EXPECT_GT(stats.parked, 0);
      }
      if (preemption == PreemptionMode::kRecompute) {
        EXPECT_EQ(stats.parked, 0);
      }
      EXPECT_EQ(stats.parked_bytes, 0);
      for (const auto& [id, i] : which)
        expect_same(answers.at(id * 1000), alone(prompts[i], 12),
                    "request " + std::to_string(i) + ", " + std::string(preemption_mode_name(preemption)));
      expect_nothing_left(*engine, slots, pages);
    }
}

TEST_P(CacheModes, ATinyPoolServesEveryRequestInTheEnd) {
  EngineOptions tiny = options(MambaCacheMode::kAuto);
  {
    auto probe = Engine::load(tiny);
    run_one(*probe, prompt_of(100, 1), 1);
    probe->clear_prefix_cache();
    const EngineStats stats = probe->stats();
    tiny.kv_cache_memory_bytes = 2 * stats.peak_recurrent_bytes / 3 + stats.peak_attention_bytes * 3 / 2 + 1;
  }
  tiny.max_num_seqs = 6;
  std::unique_ptr<Engine> engine;
  try {
    engine = Engine::load(tiny);
  } catch (const Error&) {
    GTEST_SKIP() << "the probe's peak is less than one sequence";
  }
  const int64_t slots = engine->free_state_slots();
  const int64_t pages = engine->free_attention_pages();
  std::map<RequestId, uint32_t> which;
  for (uint32_t i = 0; i < 12; ++i) {
    const auto prompt = joined(prompt_of(40, 50 + i % 3), prompt_of(20, 60 + i));
    try {
      which[engine->add_request({prompt, with_logprobs(20)})] = i;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kResourceExhausted);
    }
  }
  const Answers answers = run_all(*engine);
  for (const auto& [id, i] : which)
    expect_same(answers.at(id * 1000), alone(joined(prompt_of(40, 50 + i % 3), prompt_of(20, 60 + i)), 20),
                "request " + std::to_string(i));
  EXPECT_LE(engine->stats().peak_recurrent_bytes + engine->stats().peak_attention_bytes,
            2 * tiny.kv_cache_memory_bytes);
  expect_nothing_left(*engine, slots, pages);
}

TEST_P(CacheModes, AnswersOfOnePromptShareItsStates) {
  auto engine = Engine::load(options(MambaCacheMode::kAuto));
  const int64_t slots = engine->free_state_slots();
  const int64_t pages = engine->free_attention_pages();
  const auto prompt = prompt_of(83, 7);
  for (const int64_t n : {2, 12}) {  // more than there are rows: some wait for theirs
    SamplingParams sampling = with_logprobs(10);
    Request same{prompt, sampling};
    same.n = n;
    engine->add_request(same);
    const int64_t computed = engine->stats().computed_tokens;
    const Answers answers = run_all(*engine);
    ASSERT_EQ(std::ssize(answers), n);
    const RequestOutput expected = alone(prompt, 10);
    for (const auto& [key, answer] : answers) expect_same(answer, expected, "answer " + std::to_string(key % 1000));
    if (n == 2) {
      EXPECT_LE(engine->stats().computed_tokens - computed, 83 + 2 * 10) << "the prompt is computed once";
    }
  }
  // Different seeds: each answer is what its seed gives alone.
  SamplingParams random = with_logprobs(8);
  random.temperature = 1.5f;
  random.seed = 40;
  Request several{prompt, random};
  several.n = 3;
  const RequestId id = engine->add_request(several);
  const Answers answers = run_all(*engine);
  for (int64_t i = 0; i < 3; ++i) {
    random.seed = 40 + static_cast<uint64_t>(i);
    engine->add_request({prompt, random});
    EXPECT_EQ(ids_of(answers.at(id * 1000 + i)), ids_of(run_all(*engine).begin()->second)) << "answer " << i;
  }
  expect_nothing_left(*engine, slots, pages);
}

TEST_P(CacheModes, TheBestAnswersAreTheLikeliest) {
  auto engine = Engine::load(options(MambaCacheMode::kAuto));
  SamplingParams random = greedy(6);
  random.temperature = 1.2f;
  random.seed = 9;
  Request all{prompt_of(50, 8), random};
  all.n = 6;
  all.sampling.logprobs = 0;
  const RequestId id = engine->add_request(all);
  Answers answers = run_all(*engine);
  std::vector<std::pair<double, std::vector<int32_t>>> by_likelihood;
  for (int64_t i = 0; i < 6; ++i)
    by_likelihood.emplace_back(-answers.at(id * 1000 + i).cumulative_logprob, ids_of(answers.at(id * 1000 + i)));
  std::stable_sort(by_likelihood.begin(), by_likelihood.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  Request best = all;
  best.n = 2;
  best.best_of = 6;
  const RequestId chosen = engine->add_request(best);
  answers = run_all(*engine);
  ASSERT_EQ(answers.size(), 2u);
  for (int64_t i = 0; i < 2; ++i)
    EXPECT_EQ(ids_of(answers.at(chosen * 1000 + i)), by_likelihood[static_cast<size_t>(i)].second) << i;
}

TEST_P(CacheModes, CancelsLeaveNothingBehind) {
  auto engine = Engine::load(options(MambaCacheMode::kAuto));
  const int64_t slots = engine->free_state_slots();
  const int64_t pages = engine->free_attention_pages();
  for (int i = 0; i < 40; ++i) {
    Request request{joined(prompt_of(50, 9), prompt_of(1 + i % 7, 70 + static_cast<uint32_t>(i))), greedy(5)};
    request.n = 1 + i % 3;
    const RequestId id = engine->add_request(request);
    for (int steps = 0; steps < i % 5; ++steps) engine->step();
    engine->abort(id);
    EXPECT_FALSE(engine->has_unfinished_requests());
    EXPECT_EQ(engine->stats().leaked_slots, 0);
  }
  expect_nothing_left(*engine, slots, pages);
}

INSTANTIATE_TEST_SUITE_P(Families, CacheModes, testing::ValuesIn(families::names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Replaying, CacheModes, testing::ValuesIn(families::replaying_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Sharing, CacheModes, testing::ValuesIn(families::sharing_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace coluber
