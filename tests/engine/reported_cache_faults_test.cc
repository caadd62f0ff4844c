// SPDX-License-Identifier: Apache-2.0
//
// Faults of caches, schedulers and sessions that users reported of other engines, each named by its report, as far as
// no other test meets them: docs/faults.md has the whole list.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::options_for;
using families::prompt_of;

using Ids = std::vector<int32_t>;

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::map<RequestId, RequestOutput> run_all(Engine& engine) {
  std::map<RequestId, RequestOutput> answers;
  while (engine.has_unfinished_requests())
    for (RequestOutput& output : engine.step()) {
      EXPECT_NE(output.finish_reason, FinishReason::kError) << output.error;
      std::vector<TokenOutput> tokens = std::move(answers[output.id].tokens);
      for (TokenOutput& token : output.tokens) tokens.push_back(std::move(token));
      answers[output.id] = std::move(output);
      answers[output.id].tokens = std::move(tokens);
    }
  EXPECT_EQ(engine.audit(), "");
  return answers;
}

RequestOutput ask(Engine& engine, const Ids& prompt, int64_t tokens = 8) {
  engine.add_request({prompt, greedy(tokens)});
  return run_all(engine).begin()->second;
}

EngineOptions cached(const std::string& family, MambaCacheMode mode = MambaCacheMode::kAuto) {
  EngineOptions options = options_for(family);
  options.poison_pools = true;
  options.mamba_cache_mode = mode;
  options.verify_states = true;
  options.kv_cache_memory_bytes = int64_t{256} << 20;
  return options;
}

// One sequence alone, without a cache.
Ids alone(const std::string& family, const Ids& prompt, int64_t tokens = 8) {
  EngineOptions options = options_for(family);
  options.enable_prefix_caching = false;
  const auto engine = Engine::load(options);
  const auto session = engine->open_session();
  session->extend(prompt, std::ssize(prompt));
  return ids_of(session->generate(greedy(tokens)));
}

// ---- prefixes --------------------------------------------------------------------------------------------------

TEST(ReportedPrefixes, Vllm45238SharedBlocksAreHitThoughEachPromptGoesOnAlone) {
  const Ids shared = prompt_of(2000, 1);
  for (const auto mode : {MambaCacheMode::kAuto, MambaCacheMode::kAll, MambaCacheMode::kAlign}) {
    EngineOptions options = cached("mamba2", mode);
    options.mamba_block_size = 896;
    const auto engine = Engine::load(options);
    for (uint32_t i = 0; i < 4; ++i) {
      const RequestOutput output = ask(*engine, joined(shared, prompt_of(500, 10 + i)), 1);
      const std::string where = std::string(mamba_cache_mode_name(mode)) + ", request " + std::to_string(i);
      if (i == 0) {
        EXPECT_EQ(output.miss_reason, MissReason::kNoCommonPrefix) << where;
      } else if (mode == MambaCacheMode::kAuto && i == 1) {
        EXPECT_EQ(output.miss_reason, MissReason::kNoCheckpointBeforeDivergence) << where;
        EXPECT_EQ(output.common_tokens, 2000) << where;
      } else {
        EXPECT_GE(output.cached_tokens, 1792) << where;
      }
    }
  }
}

TEST(ReportedPrefixes, Vllm51250ALongPromptSentTwiceIsFoundToItsLastWholeBlock) {
  const Ids prompt = prompt_of(5501, 2);
  for (const auto mode : {MambaCacheMode::kAll, MambaCacheMode::kAlign}) {
    EngineOptions options = cached("mamba2", mode);
    options.mamba_block_size = 864;
    const auto engine = Engine::load(options);
    ask(*engine, prompt, 1);
    EXPECT_EQ(ask(*engine, prompt, 1).cached_tokens, (5501 - 1) / 864 * 864) << mamba_cache_mode_name(mode);
  }
}

TEST(ReportedPrefixes, Vllm56196ChunksShorterThanTheConvolutionLeaveSharedBlocksAlone) {
  for (const std::string family : {"mamba2", "lfm2", "jamba_bf16"}) {
    const Ids shared = prompt_of(32, 3);
    for (const int64_t chunk : {1, 2, 3}) {
      EngineOptions options = cached(family, MambaCacheMode::kAll);
      options.mamba_block_size = 16;
      options.max_num_seqs = 1;
      options.max_num_batched_tokens = chunk;
      const auto engine = Engine::load(options);
      ask(*engine, shared, 1);
      for (int64_t more : {1, 2, 3, 6}) {
        const Ids prompt = joined(shared, prompt_of(more, static_cast<uint32_t>(40 + more)));
        const RequestOutput output = ask(*engine, prompt);
        EXPECT_EQ(output.cached_tokens, 32) << family;
        EXPECT_EQ(ids_of(output), alone(family, prompt)) << family << ", chunks of " << chunk << ", " << more;
      }
      EXPECT_EQ(engine->stats().broken_states, 0) << "a shared state is as it was";
    }
  }
}

TEST(ReportedPrefixes, Sglang29633AHitMayLeaveASingleToken) {
  for (const std::string family : {"minimax", "qwen3_next_bf16"}) {
    EngineOptions options = cached(family, MambaCacheMode::kAll);
    options.mamba_block_size = 64;
    const auto engine = Engine::load(options);
    for (int64_t m = 1; m <= 4; ++m)
      for (const int64_t length : {64 * m - 1, 64 * m, 64 * m + 1}) {
        const Ids prompt = prompt_of(length, static_cast<uint32_t>(length));
        const Ids expected = alone(family, prompt, 3);
        EXPECT_EQ(ids_of(ask(*engine, prompt, 3)), expected) << family << " " << length;
        const RequestOutput warm = ask(*engine, prompt, 3);
        EXPECT_EQ(ids_of(warm), expected) << family << " " << length << " again";
        EXPECT_EQ(warm.cached_tokens, (length - 1) / 64 * 64) << family << " " << length;
      }
  }
}

TEST(ReportedPrefixes, Sglang29973TheSamePromptsGiveTheSameAnswersTimeAfterTime) {
  for (const std::string family : {"minimax_text_01", "bailing_linear", "bailing_hybrid"}) {
    const auto engine = Engine::load(cached(family));
    std::vector<Ids> first;
    for (int round = 0; round < 3; ++round)
      for (uint32_t i = 0; i < 5; ++i) {
        const Ids ids = ids_of(ask(*engine, joined(prompt_of(40, 5), prompt_of(9 + 7 * i, i)), 16));
        if (round == 0) first.push_back(ids);
        EXPECT_EQ(ids, first[i]) << family << ", round " << round;
      }
  }
}

TEST(ReportedPrefixes, MistralRs2017AClearedCacheLeavesNoTrace) {
  for (const std::string family : {"gated_deltanet", "falcon_h1_bf16"}) {
    const auto engine = Engine::load(cached(family));
    const int64_t slots = engine->free_state_slots();
    const Ids prompt = prompt_of(90, 6);
    const Ids expected = ids_of(ask(*engine, prompt));
    engine->clear_prefix_cache();
    EXPECT_EQ(engine->free_state_slots(), slots);
    const RequestOutput again = ask(*engine, prompt);
    EXPECT_EQ(ids_of(again), expected);
    EXPECT_EQ(again.cached_tokens, 0);
  }
}

TEST(ReportedPrefixes, LlamaCpp24055AnEditOfATurnCostsWhatComesAfterIt) {
  const std::string family = "lfm2";
  const auto engine = Engine::load(cached(family));
  Ids chat = prompt_of(600, 7);
  std::vector<int64_t> ends;
  for (uint32_t turn = 0; turn < 5; ++turn) {
    chat = joined(joined(chat, ids_of(ask(*engine, chat, 12))), prompt_of(300, 20 + turn));
    ends.push_back(std::ssize(chat));
  }
  Ids edited = chat;  // in the last hundred tokens of the turn before the last
  for (int64_t i = ends[3] - 100; i < ends[3]; ++i)
    edited[static_cast<size_t>(i)] = (edited[static_cast<size_t>(i)] + 1) % 250;
  const RequestOutput output = ask(*engine, edited);
  EXPECT_EQ(ids_of(output), alone(family, edited));
  EXPECT_GE(output.cached_tokens, ends[2]) << "all turns before the edited one";
  EXPECT_GE(ask(*engine, chat).cached_tokens, ends[3]) << "what the edit parted from is there still";
}

TEST(ReportedPrefixes, LlamaCpp14625AnAnswerMadeAgainComputesTheLastTurnAlone) {
  const auto engine = Engine::load(cached("jamba_bf16"));
  const Ids first = prompt_of(400, 8);
  const Ids second = joined(joined(first, ids_of(ask(*engine, first, 20))), prompt_of(50, 9));
  const Ids expected = ids_of(ask(*engine, second, 20));
  const RequestOutput again = ask(*engine, second, 20);
  EXPECT_EQ(ids_of(again), expected);
  EXPECT_GE(again.cached_tokens, 420 - 1);
}

TEST(ReportedPrefixes, Vllm55507StatesOfLargeBlocksAndPagesOfSmallOnesKeepTheirOwnCounts) {
  for (const std::string family : {"lfm2", "jamba_bf16"}) {
    EngineOptions options = cached(family, MambaCacheMode::kAll);
    options.block_size = 16;
    options.mamba_block_size = 1616;
    const auto engine = Engine::load(options);
    const Ids prompt = prompt_of(2 * 1616 + 5, 11);
    const Ids expected = ids_of(ask(*engine, prompt));
    const RequestOutput warm = ask(*engine, prompt);
    EXPECT_EQ(warm.cached_tokens, 2 * 1616) << family;
    EXPECT_EQ(ids_of(warm), expected) << family;
  }
}

// ---- first tokens and chunks -----------------------------------------------------------------------------------

TEST(ReportedChunks, Vllm51483AFirstChunkOfOneTokenStartsFromNothing) {
  for (const std::string& family : families::names()) {
    EngineOptions options = cached(family, MambaCacheMode::kNone);
    options.max_num_seqs = 2;
    options.max_num_batched_tokens = 9;
    const auto engine = Engine::load(options);
    ask(*engine, prompt_of(30, 12));  // leaves its states in the slots
    const Ids other = prompt_of(17, 13);
    const RequestId first = engine->add_request({prompt_of(8, 14), greedy(4)});
    const RequestId second = engine->add_request({other, greedy(6)});  // its first chunk is what the first leaves of 9
    auto answers = run_all(*engine);
    EXPECT_EQ(answers.at(first).tokens.size(), 4u);
    EXPECT_EQ(ids_of(answers.at(second)), ids_of(ask(*engine, other, 6))) << family;
  }
}

// ---- batches ---------------------------------------------------------------------------------------------------

TEST(ReportedBatches, Ninfer80OneRequestManyTimesAtOnceHasOneAnswer) {
  for (const std::string family : {"gated_deltanet", "mamba2", "minimax"}) {
    EngineOptions options = options_for(family);
    options.deterministic = true;
    options.max_num_seqs = 64;
    for (const bool caches : {false, true}) {
      options.enable_prefix_caching = caches;
      const auto engine = Engine::load(options);
      SamplingParams sampling = greedy(16);
      sampling.logprobs = 0;
      std::vector<std::pair<int32_t, float>> expected;
      for (const int64_t copies : {1, 2, 8, 64}) {
        for (int64_t i = 0; i < copies; ++i) engine->add_request({prompt_of(37, 15), sampling});
        for (const auto& [id, answer] : run_all(*engine)) {
          std::vector<std::pair<int32_t, float>> found;
          for (const TokenOutput& token : answer.tokens) found.emplace_back(token.id, token.logprob);
          if (expected.empty()) expected = found;
          EXPECT_EQ(found, expected) << family << ", one of " << copies;
        }
      }
    }
  }
}

TEST(ReportedBatches, Transformers41790ShortConvolutionsOfUnequalPromptsKeepApart) {
  const auto engine = Engine::load(cached("lfm2", MambaCacheMode::kNone));
  const RequestId a = engine->add_request({prompt_of(3, 16), greedy(20)});
  const RequestId b = engine->add_request({prompt_of(9, 17), greedy(20)});
  auto answers = run_all(*engine);
  EXPECT_EQ(ids_of(answers.at(a)), alone("lfm2", prompt_of(3, 16), 20));
  EXPECT_EQ(ids_of(answers.at(b)), alone("lfm2", prompt_of(9, 17), 20));
}

// ---- sizes -----------------------------------------------------------------------------------------------------

TEST(ReportedSizes, Sglang171PagesOfAnySizeStartWithThePrefixCacheOn) {
  for (const std::string family : {"lfm2", "mamba2", "qwen3_next_bf16"}) {
    const Ids prompt = prompt_of(150, 18);
    const Ids expected = alone(family, prompt);
    for (const int64_t block : {1, 7, 16, 64, 128, 544}) {
      EngineOptions options = cached(family);
      options.block_size = block;
      const auto engine = Engine::load(options);
      EXPECT_EQ(ids_of(ask(*engine, prompt)), expected) << family << ", " << block;
      EXPECT_EQ(ids_of(ask(*engine, prompt)), expected) << family << ", " << block << " warm";
    }
  }
}

TEST(ReportedSizes, Vllm54458AShortPromptTakesOneStateAndOnePage) {
  EngineOptions options = cached("jamba_bf16", MambaCacheMode::kNone);
  const auto engine = Engine::load(options);
  const int64_t slots = engine->free_state_slots();
  const int64_t pages = engine->free_attention_pages();
  for (int64_t i = 1; i <= 8; ++i) engine->add_request({prompt_of(12, 19), greedy(3)});
  engine->step();
  EXPECT_EQ(slots - engine->free_state_slots(), 8);
  EXPECT_EQ(pages - engine->free_attention_pages(), 8);
  run_all(*engine);
  EXPECT_EQ(engine->free_state_slots(), slots);
}

TEST(ReportedSizes, Vllm49064MoreSequencesThanFitWaitTheirTurn) {
  EngineOptions options = cached("mamba2", MambaCacheMode::kNone);
  options.max_num_seqs = 1024;
  options.max_num_batched_tokens = 1024;
  {
    const auto probe = Engine::load(options);
    probe->add_request({prompt_of(4), greedy(2)});
    probe->step();
    options.kv_cache_memory_bytes = 10 * probe->stats().recurrent_bytes;  // of one sequence
    run_all(*probe);
  }
  const auto engine = Engine::load(options);
  std::map<RequestId, uint32_t> asked;
  for (uint32_t i = 0; i < 100; ++i) asked[engine->add_request({prompt_of(4, i), greedy(5)})] = i;
  int64_t most = 0;
  std::map<RequestId, Ids> found;
  while (engine->has_unfinished_requests()) {
    for (const RequestOutput& output : engine->step())
      for (const TokenOutput& token : output.tokens) found[output.id].push_back(token.id);
    most = std::max(most, engine->stats().running);
  }
  EXPECT_EQ(most, 10) << "and one state each: no more";
  ASSERT_EQ(found.size(), 100u);
  for (const auto& [id, i] : asked) EXPECT_EQ(found.at(id).size(), 5u) << i;
}

TEST(ReportedSizes, Sglang19169WithoutAPrefixCacheASequenceHasOneState) {
  EngineOptions options = options_for("gated_deltanet");
  options.enable_prefix_caching = false;
  options.max_num_seqs = 32;
  const auto engine = Engine::load(options);
  const int64_t slots = engine->free_state_slots();
  for (uint32_t i = 0; i < 32; ++i) engine->add_request({prompt_of(20, i), greedy(8)});
  for (int step = 0; step < 4; ++step) {
    engine->step();
    EXPECT_LE(slots - engine->free_state_slots(), 32);
  }
  EXPECT_EQ(slots - engine->free_state_slots(), engine->stats().running);
}

// ---- leaks -----------------------------------------------------------------------------------------------------

TEST(ReportedLeaks, Sglang12693AThousandCancelsAfterAHitLeaveEverySlotFree) {
  EngineOptions options = cached("gated_deltanet");
  options.max_num_seqs = 2;
  const auto engine = Engine::load(options);
  const int64_t slots = engine->free_state_slots();
  const Ids shared = prompt_of(64, 20);
  ask(*engine, shared, 2);
  for (int i = 0; i < 1000; ++i) {
    std::vector<RequestId> ids;
    for (int j = 0; j <= i % 4; ++j)  // more than there are rows: some never run
      ids.push_back(
          engine->add_request({joined(shared, prompt_of(1 + i % 3, static_cast<uint32_t>(i % 7))), greedy(4)}));
    for (int step = 0; step < i % 3; ++step) engine->step();
    for (const RequestId id : ids) engine->abort(id);
    ASSERT_FALSE(engine->has_unfinished_requests());
    ASSERT_EQ(engine->stats().leaked_slots, 0) << "round " << i;
  }
  EXPECT_GT(engine->stats().hit_tokens, 0);
  EXPECT_EQ(engine->audit(), "");
  engine->clear_prefix_cache();
  EXPECT_EQ(engine->free_state_slots(), slots);
}

TEST(ReportedLeaks, Sglang23496AThousandSessionsThatCloseLeaveEverySlotFree) {
  const auto engine = Engine::load(options_for("jamba_bf16"));
  const int64_t slots = engine->free_state_slots();
  const int64_t pages = engine->free_attention_pages();
  for (int i = 0; i < 1000; ++i) {
    const auto session = engine->open_session();
    session->extend(prompt_of(2 + i % 20, 21));
    if (i % 3 == 0) session->generate(greedy(2), [](const TokenOutput&, const std::string&) { return false; });
    if (i % 5 == 0) session->fork()->extend(prompt_of(2));
  }
  EXPECT_EQ(engine->free_state_slots(), slots);
  EXPECT_EQ(engine->free_attention_pages(), pages);
}

// ---- sessions --------------------------------------------------------------------------------------------------

TEST(ReportedSessions, LlamaCpp25913ARestoredSessionComputesOnlyWhatIsNew) {
  const std::string path = testing::TempDir() + "coluber_reported_" + std::to_string(::getpid());
  for (const std::string family : {"lfm2", "mamba2", "jamba_bf16", "qwen3_next_bf16"}) {
    const Ids prompt = prompt_of(120, 22), more = prompt_of(10, 23);
    {
      const auto engine = Engine::load(options_for(family));
      const auto session = engine->open_session();
      session->extend(prompt);
      session->save(path);
    }
    const auto engine = Engine::load(options_for(family));
    const auto session = engine->open_session();
    session->load(path);
    const int64_t steps = engine->num_steps();
    session->extend(more);
    EXPECT_EQ(engine->num_steps(), steps + 1) << family;
    const RequestOutput output = session->generate(greedy(8));
    EXPECT_EQ(output.cached_tokens, 120) << family;
    EXPECT_EQ(ids_of(output), alone(family, joined(prompt, more))) << family;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace coluber
