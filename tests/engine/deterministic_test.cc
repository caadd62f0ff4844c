// SPDX-License-Identifier: Apache-2.0
//
// With EngineOptions::deterministic no bit depends on how a prompt was cut, on who else is in the batch, on how many
// threads compute, or on what was cached, parked, forked, rolled back, restored or imported.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "cache/session_file.h"
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

TEST_P(Deterministic, BatchesOfAnySizeGiveTheSameBits) {
  auto engine = load();
  const auto ask = [&](uint32_t i) {
    return engine->add_request({prompt_of(1 + (7 * i) % 40, i + 1), with_logprobs(5)});
  };
  std::vector<Answers::mapped_type> alone;
  for (uint32_t i = 0; i < 4; ++i) {
    ask(i);
    alone.push_back(run_all(*engine).begin()->second);
  }
  for (const uint32_t size : {2u, 3u, 8u, 17u, 64u}) {
    engine->clear_prefix_cache();
    std::vector<RequestId> ids;
    for (uint32_t i = 0; i < size; ++i) ids.push_back(ask(i));
    const Answers together = run_all(*engine);
    for (size_t i = 0; i < std::min<size_t>(4, size); ++i)
      EXPECT_EQ(together.at(ids[i]), alone[i]) << "request " << i << " of " << size;
  }
}

TEST_P(Deterministic, WhatWasCachedChangesNoBit) {
  EngineOptions options = options_for(GetParam());
  options.deterministic = true;
  options.poison_pools = true;
  options.enable_prefix_caching = false;
  auto plain = Engine::load(options);
  const auto prompt = prompt_of(150, 3);
  auto longer = prompt;
  for (const int32_t id : prompt_of(40, 4)) longer.push_back(id);
  std::vector<Answers::mapped_type> expected;
  for (const auto& ids : {prompt, prompt, longer}) {
    plain->add_request({ids, with_logprobs(8)});
    expected.push_back(run_all(*plain).begin()->second);
  }
  options.enable_prefix_caching = true;
  options.mamba_block_size = 32;
  options.max_num_batched_tokens = 48;
  for (const auto mode : {MambaCacheMode::kAll, MambaCacheMode::kAlign, MambaCacheMode::kAuto}) {
    options.mamba_cache_mode = mode;
    auto engine = Engine::load(options);
    size_t i = 0;
    for (const auto& ids : {prompt, prompt, longer}) {
      Request request{ids, with_logprobs(8)};
      request.n = 2;
      const RequestId id = engine->add_request(std::move(request));
      Answers::mapped_type twice;
      const Answers found = run_all(*engine);
      for (const auto& one : expected[i]) twice.insert(twice.end(), 2, one);
      auto sorted = found.at(id);
      std::ranges::sort(sorted);
      std::ranges::sort(twice);
      EXPECT_EQ(sorted, twice) << mamba_cache_mode_name(mode) << ", request " << i;
      ++i;
    }
    EXPECT_GT(engine->stats().hit_tokens, 0);
  }
}

TEST_P(Deterministic, WhoeverMadeRoomComesBackWithTheSameBits) {
  auto plain = load();
  std::vector<Answers::mapped_type> expected;
  for (uint32_t i = 0; i < 4; ++i) {
    plain->add_request({prompt_of(20 + 13 * i, 30 + i), with_logprobs(10)});
    expected.push_back(run_all(*plain).begin()->second);
  }
  for (const auto preemption : {PreemptionMode::kPark, PreemptionMode::kRecompute}) {
    EngineOptions options = options_for(GetParam());
    options.deterministic = true;
    options.poison_pools = true;
    options.preemption = preemption;
    options.scheduling_policy = SchedulingPolicy::kPriority;
    options.max_num_seqs = 2;
    options.max_num_batched_tokens = 16;
    auto engine = Engine::load(options);
    std::vector<RequestId> ids;
    Answers found;
    const auto take = [&](const std::vector<RequestOutput>& outputs) {
      for (const RequestOutput& output : outputs)
        for (const TokenOutput& token : output.tokens)
          for (const TokenLogprob& top : token.top_logprobs) found[output.id].emplace_back(top.id, top.logprob);
    };
    for (uint32_t i = 0; i < 4; ++i) {  // each goes before those that run
      Request request{prompt_of(20 + 13 * i, 30 + i), with_logprobs(10)};
      request.priority = -static_cast<int64_t>(i);
      ids.push_back(engine->add_request(std::move(request)));
      for (int steps = 0; steps < 3; ++steps) take(engine->step());
    }
    while (engine->has_unfinished_requests()) take(engine->step());
    EXPECT_GT(engine->stats().preemptions, 0);
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(found.at(ids[i]), expected[i]) << "request " << i << ", " << preemption_mode_name(preemption);
  }
}

TEST_P(Deterministic, SessionsGoOnWithTheBitsOfOnePass) {
  const std::string path = testing::TempDir() + "coluber_deterministic_" + std::to_string(::getpid());
  auto engine = load();
  const auto prompt = prompt_of(75, 5), next = prompt_of(30, 6);
  auto all = prompt;
  all.insert(all.end(), next.begin(), next.end());
  auto whole = engine->open_session();
  const std::vector<float> logits = logits_of(*whole, all);
  const auto vocab = static_cast<int64_t>(whole->last_logits().size());
  const std::vector<float> expected(logits.end() - std::ssize(next) * vocab, logits.end());

  auto session = engine->open_session();
  session->extend(prompt, 11);
  session->save(path);
  const SessionCheckpoint mark = session->checkpoint();
  auto fork = session->fork();
  EXPECT_EQ(logits_of(*session, next, 4), expected) << "in parts";
  EXPECT_EQ(logits_of(*fork, next, 30), expected) << "forked";
  session->rollback(mark);
  EXPECT_EQ(logits_of(*session, next, 7), expected) << "rolled back";
  auto other = load(1);
  auto restored = other->open_session();
  restored->load(path);
  EXPECT_EQ(logits_of(*restored, next, 13), expected) << "restored";
  const SessionImage image = read_session_file(path);
  write_session_file(path + "x", convert_session_image({&image, 1}, {StatePacking::kContract, ConvLayout::kDs, 5, {}}));
  auto imported = other->open_session();
  imported->load(path + "x");
  EXPECT_EQ(logits_of(*imported, next, 1), expected) << "imported";
  std::filesystem::remove(path);
  std::filesystem::remove(path + "x");
}

INSTANTIATE_TEST_SUITE_P(Families, Deterministic, testing::ValuesIn(families::names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace coluber
