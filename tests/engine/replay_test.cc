// SPDX-License-Identifier: Apache-2.0
//
// Replay of steps, for every family that has it: what is written every so many steps, and read through a ring until
// then, is what is written at every step. And what it cannot go together with.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "coluber/error.h"
#include "coluber/mamba_base.h"
#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::logits_of;
using families::options_for;
using families::prompt_of;

class Replay : public testing::TestWithParam<std::string> {
 protected:
  static EngineOptions options(ReplayMode mode, int64_t buffer_len = 16) {
    EngineOptions options = options_for(GetParam());
    options.poison_pools = true;
    options.use_replayssm = mode;
    options.replayssm_buffer_len = buffer_len;
    return options;
  }
  static void expect_close(std::span<const float> a, std::span<const float> b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-4f) << what << ", at " << i;
  }
  static void expect_same_states(const Session& a, const Session& b, const std::string& what) {
    const std::vector<ExportedState> x = a.export_states(), y = b.export_states();
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) expect_close(x[i].values, y[i].values, what + ", " + x[i].name);
  }
};

TEST_P(Replay, GivesTheLogitsAndStatesOfStepsThatWrite) {
  auto plain = Engine::load(options(ReplayMode::kOff));
  for (const int64_t buffer_len : {1, 2, 5, 16, 64}) {
    auto engine = Engine::load(options(ReplayMode::kOn, buffer_len));
    ASSERT_TRUE(engine->config().cache.use_replayssm);
    auto a = plain->open_session(), b = engine->open_session();
    const std::string what = "a ring of " + std::to_string(buffer_len);
    // Prompts meet rings in every state of filling, and one of a single token meets none.
    const std::vector<int32_t> lengths = {1, 37, 3, 2, 19};
    for (size_t turn = 0; turn < lengths.size(); ++turn) {
      const auto prompt = prompt_of(lengths[turn], static_cast<uint32_t>(turn + 1));
      expect_close(logits_of(*a, prompt), logits_of(*b, prompt), what + ", prompt");
      for (const int32_t id : prompt_of(static_cast<int64_t>(7 * turn + 3), static_cast<uint32_t>(turn + 20)))
        expect_close(logits_of(*a, std::span(&id, 1)), logits_of(*b, std::span(&id, 1)), what + ", step");
    }
    expect_same_states(*a, *b, what);
  }
}

TEST_P(Replay, AForkAndARollbackCarryTheRing) {
  auto engine = Engine::load(options(ReplayMode::kOn));
  auto session = engine->open_session();
  session->extend(prompt_of(21));
  for (const int32_t id : prompt_of(9, 2)) session->extend(std::span(&id, 1));
  auto fork = session->fork();
  const SessionCheckpoint mark = session->checkpoint();
  const std::vector<int32_t> answer = ids_of(session->generate(greedy(30)));
  const std::vector<float> logits(session->last_logits().begin(), session->last_logits().end());
  EXPECT_EQ(ids_of(fork->generate(greedy(30))), answer);
  EXPECT_TRUE(std::ranges::equal(fork->last_logits(), logits)) << "bit for bit";
  session->rollback(mark);
  EXPECT_EQ(ids_of(session->generate(greedy(30))), answer);
  EXPECT_TRUE(std::ranges::equal(session->last_logits(), logits)) << "bit for bit";
}

// A file has no rings: who saves goes on with what it saved, and who loads need not replay.
TEST_P(Replay, ASavedSessionGoesOnWithTheSameBitsAndWithoutReplayToo) {
  const std::string path = testing::TempDir() + "coluber_replay_" + GetParam() + std::to_string(::getpid());
  auto engine = Engine::load(options(ReplayMode::kOn));
  auto session = engine->open_session();
  session->extend(prompt_of(21));
  for (const int32_t id : prompt_of(9, 2)) session->extend(std::span(&id, 1));
  session->save(path);
  const auto next = prompt_of(25, 3);
  const std::vector<float> expected = [&] {
    std::vector<float> all;
    for (const int32_t id : next) {
      const std::vector<float> logits = logits_of(*session, std::span(&id, 1));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }();
  for (const ReplayMode mode : {ReplayMode::kOn, ReplayMode::kOff}) {
    auto other = Engine::load(options(mode, mode == ReplayMode::kOn ? 16 : 4));
    auto restored = other->open_session();
    restored->load(path);
    std::vector<float> found;
    for (const int32_t id : next) {
      const std::vector<float> logits = logits_of(*restored, std::span(&id, 1));
      found.insert(found.end(), logits.begin(), logits.end());
    }
    if (mode == ReplayMode::kOn) {
      EXPECT_EQ(found, expected) << "bit for bit";
    }
    expect_close(found, expected, "mode " + std::string(replay_mode_name(mode)));
  }
  std::filesystem::remove(path);
}

// Sequences of one batch are at different places of their rings.
TEST_P(Replay, RowsOfABatchDoNotMeet) {
  auto plain = Engine::load(options(ReplayMode::kOff)), engine = Engine::load(options(ReplayMode::kOn));
  std::map<RequestId, std::vector<int32_t>> asked;
  std::map<RequestId, std::vector<TokenOutput>> answers;
  const auto step = [&] {
    for (const RequestOutput& output : engine->step()) {
      EXPECT_NE(output.finish_reason, FinishReason::kError) << output.error;
      for (const TokenOutput& token : output.tokens) answers[output.id].push_back(token);
    }
  };
  for (uint32_t i = 0; i < 7; ++i) {
    const auto prompt = prompt_of(1 + 5 * i, i + 1);
    SamplingParams params = greedy(20 + i);
    params.logprobs = 1;
    asked[engine->add_request({prompt, params})] = prompt;
    step();
  }
  while (engine->has_unfinished_requests()) step();
  EXPECT_EQ(engine->audit(), "");
  for (const auto& [id, prompt] : asked) {
    auto alone = plain->open_session();
    alone->extend(prompt);
    ASSERT_FALSE(answers[id].empty());
    for (const TokenOutput& token : answers[id]) {
      const std::span<const float> last = alone->last_logits();
      double sum = 0.0;
      for (const float value : last) sum += std::exp(static_cast<double>(value));
      const double logprob = static_cast<double>(last[static_cast<size_t>(token.id)]) - std::log(sum);
      ASSERT_NEAR(token.logprob, logprob, 2e-3) << "request " << id;
      alone->extend(std::span(&token.id, 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Replay, testing::ValuesIn(families::replaying_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

TEST(ReplayCoverage, EveryFamilyWithMamba2LayersHasIt) {
  size_t with_layers = 0;
  for (const std::string& name : families::names()) {
    const ModelDescription model = describe_model(options_for(name));
    bool any = false;
    for (const AttentionLayerBase* layer : model.config->layers) {
      const auto* recurrent = dynamic_cast<const MambaBase*>(layer);
      any = any || (recurrent != nullptr && recurrent->mamba_type() == MambaAttentionBackendEnum::kMamba2);
    }
    with_layers += any ? 1 : 0;
  }
  EXPECT_EQ(families::replaying_names().size(), with_layers);
  EXPECT_GE(with_layers, 5u);
}

std::string refusal(const EngineOptions& options) {
  try {
    Engine::load(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ReplayRefused, WithTheReason) {
  EngineOptions base = options_for("mamba2");
  base.use_replayssm = ReplayMode::kOn;
  const auto expect = [](const EngineOptions& options, const std::string& why) {
    EXPECT_NE(refusal(options).find(why), std::string::npos) << "'" << refusal(options) << "' has no '" << why << "'";
  };
  EngineOptions all = base;
  all.mamba_cache_mode = MambaCacheMode::kAll;
  expect(all, "mode all keeps a state at every block");
  all.enable_prefix_caching = false;
  EXPECT_EQ(refusal(all), "") << "nothing is kept then";
  EngineOptions deterministic = base;
  deterministic.deterministic = true;
  expect(deterministic, "deterministic promises the same bits");
  for (const int64_t length : {int64_t{0}, int64_t{-1}, int64_t{65}, int64_t{1} << 40}) {
    EngineOptions buffer = base;
    buffer.replayssm_buffer_len = length;
    expect(buffer, "replayssm_buffer_len must be 1 to 64, found " + std::to_string(length));
  }
  EngineOptions other = options_for("jamba_bf16");
  other.use_replayssm = ReplayMode::kOn;
  expect(other, "no SSD (Mamba-2) layer");
}

TEST(ReplayRefused, OnlyWhereItWasAskedFor) {
  EngineOptions options = options_for("mamba2");
  options.mamba_cache_mode = MambaCacheMode::kAll;
  options.deterministic = true;
  auto engine = Engine::load(options);
  EXPECT_FALSE(engine->config().cache.use_replayssm);
}

TEST(ReplayChoice, IsMadeByTheBytesOf16BitStatesOfAStep) {
  EngineOptions options = options_for("mamba2");
  const auto chosen = [&options] { return describe_model(options).config->cache.use_replayssm; };
  const ModelDescription model = describe_model(options);
  int64_t elements = 0;
  for (const AttentionLayerBase* layer : model.config->layers)
    elements += dynamic_cast<const MambaBase&>(*layer).get_state_shape()[1].count();
  const int64_t enough = ((int64_t{512} << 20) + 2 * elements - 1) / (2 * elements);
  ASSERT_LE(enough, 65536) << "sequences";
  options.max_num_batched_tokens = 1 << 20;
  options.max_num_seqs = enough;
  EXPECT_FALSE(chosen()) << "float32";
  options.mamba_ssm_cache_dtype = DType::kBFloat16;
  EXPECT_TRUE(chosen());
  options.mamba_cache_mode = MambaCacheMode::kAll;
  EXPECT_FALSE(chosen()) << "mode all";
  options.mamba_cache_mode = MambaCacheMode::kAuto;
  options.max_num_seqs = enough - 1;
  EXPECT_FALSE(chosen()) << "one sequence less";
  options.use_replayssm = ReplayMode::kOn;
  EXPECT_TRUE(chosen());
  options.max_num_seqs = enough;
  options.use_replayssm = ReplayMode::kOff;
  EXPECT_FALSE(chosen());
}

}  // namespace
}  // namespace coluber
