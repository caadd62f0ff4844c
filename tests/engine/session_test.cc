// SPDX-License-Identifier: Apache-2.0
//
// What must hold of sessions for every family: saved, restored, forked, rolled back and imported from other layouts,
// they go on with the same bits. And what files do not give: states of another model, dtype or length.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cache/session_file.h"
#include "engine/description.h"
#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::logits_of;
using families::options_for;
using families::prompt_of;

class Sessions : public testing::TestWithParam<std::string> {
 protected:
  Sessions() : folder_(std::filesystem::temp_directory_path() / ("coluber_sessions_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Sessions() override { std::filesystem::remove_all(folder_); }

  static EngineOptions options() {
    EngineOptions options = options_for(GetParam());
    options.poison_pools = true;
    return options;
  }
  std::string path(const std::string& name = "session") const { return (folder_ / name).string(); }

  // A session that has read `prompt`, and what it says to `next`.
  struct Held {
    std::unique_ptr<Session> session;
    std::vector<float> last_logits;
  };
  static Held read(Engine& engine, const std::vector<int32_t>& prompt) {
    Held held{engine.open_session(), {}};
    held.session->extend(prompt);
    const auto logits = held.session->last_logits();
    held.last_logits.assign(logits.begin(), logits.end());
    return held;
  }

  std::filesystem::path folder_;
};

TEST_P(Sessions, ARestoredSessionGoesOnWithTheSameBits) {
  const auto prompt = prompt_of(37), next = prompt_of(12, 2);
  std::vector<float> expected;
  std::vector<int32_t> expected_ids;
  Held held;
  {
    auto engine = Engine::load(options());
    held = read(*engine, prompt);
    held.session->save(path());
    expected = logits_of(*held.session, next);
    expected_ids = ids_of(held.session->generate(greedy(16)));
    held.session.reset();
  }
  auto engine = Engine::load(options());
  auto session = engine->open_session();
  session->load(path());
  EXPECT_TRUE(std::ranges::equal(session->tokens(), prompt));
  EXPECT_TRUE(session->pending().empty());
  EXPECT_TRUE(std::ranges::equal(session->last_logits(), held.last_logits));
  EXPECT_EQ(logits_of(*session, next), expected);
  const RequestOutput output = session->generate(greedy(16));
  EXPECT_EQ(ids_of(output), expected_ids);
  EXPECT_EQ(output.prompt_tokens, 49);
  EXPECT_EQ(output.cached_tokens, 37) << "only what came after the file was computed";
}

TEST_P(Sessions, APromptThatWasCutShortIsReadToItsEnd) {
  const auto prompt = prompt_of(70);
  const std::span<const int32_t> all(prompt);
  auto engine = Engine::load(options());
  auto whole = engine->open_session();
  whole->extend(prompt, 16);
  auto cut = engine->open_session();
  cut->extend(all.first(48), 16);
  cut->set_pending(all.subspan(48));
  cut->save(path());
  auto other = Engine::load(options());
  auto restored = other->open_session();
  restored->load(path());
  EXPECT_EQ(restored->tokens().size(), 48u);
  ASSERT_TRUE(std::ranges::equal(restored->pending(), all.subspan(48)));
  restored->extend(restored->pending(), 16);
  EXPECT_TRUE(std::ranges::equal(restored->last_logits(), whole->last_logits()));
  EXPECT_EQ(ids_of(restored->generate(greedy(8))), ids_of(whole->generate(greedy(8))));
}

TEST_P(Sessions, AnAnswerThatWasCutShortGoesOnWithTheSameTokens) {
  SamplingParams sampling = greedy(24);
  sampling.temperature = 1.0f;
  sampling.presence_penalty = 0.7f;
  sampling.repetition_penalty = 1.2f;
  auto engine = Engine::load(options());
  auto whole = read(*engine, prompt_of(9)).session;
  const std::vector<int32_t> expected = ids_of(whole->generate(sampling));

  whole = nullptr;
  engine = Engine::load(options());  // its seed is the same
  auto session = read(*engine, prompt_of(9)).session;
  std::vector<int32_t> tokens;
  session->generate(sampling, [&](const TokenOutput& token, const std::string&) {
    tokens.push_back(token.id);
    if (tokens.size() == 10) session->save(path());  // as a program would that is about to be stopped
    return tokens.size() < 10;
  });
  ASSERT_EQ(session->pending().size(), 1u);
  session = nullptr;
  engine = Engine::load(options());
  auto restored = engine->open_session();
  restored->load(path());
  ASSERT_TRUE(std::ranges::equal(restored->pending(), std::span(tokens).last(1)));
  restored->extend(restored->pending());
  sampling.max_tokens = 14;
  for (int32_t id : ids_of(restored->generate(sampling))) tokens.push_back(id);
  EXPECT_EQ(tokens, expected);
}

TEST_P(Sessions, AForkAndItsOriginDoNotSeeEachOther) {
  const auto prompt = prompt_of(37), left = prompt_of(20, 2), right = prompt_of(20, 3);
  auto engine = Engine::load(options());
  auto alone = read(*engine, prompt).session;
  const SessionCheckpoint start = alone->checkpoint();
  const std::vector<float> expected_left = logits_of(*alone, left, 7);
  alone->rollback(start);
  const std::vector<float> expected_right = logits_of(*alone, right, 7);

  auto origin = read(*engine, prompt).session;
  auto fork = origin->fork();
  EXPECT_TRUE(std::ranges::equal(fork->tokens(), prompt));
  EXPECT_TRUE(std::ranges::equal(fork->last_logits(), origin->last_logits()));
  std::vector<float> found_left, found_right;
  for (size_t i = 0; i < 20; i += 7) {  // in turns, in the same chunks
    const size_t size = std::min<size_t>(7, 20 - i);
    for (float value : logits_of(*origin, std::span(left).subspan(i, size))) found_left.push_back(value);
    for (float value : logits_of(*fork, std::span(right).subspan(i, size))) found_right.push_back(value);
  }
  EXPECT_EQ(found_left, expected_left);
  EXPECT_EQ(found_right, expected_right);

  auto grandchild = fork->fork();
  const std::vector<int32_t> expected = ids_of(fork->fork()->generate(greedy(8)));
  fork = nullptr;
  origin->reset();
  EXPECT_EQ(ids_of(grandchild->generate(greedy(8))), expected);
}

TEST_P(Sessions, ACheckpointIsAPlaceThatAnySessionCanGoTo) {
  auto engine = Engine::load(options());
  auto session = read(*engine, prompt_of(21)).session;
  const SessionCheckpoint checkpoint = session->checkpoint();
  const std::vector<float> expected = logits_of(*session, prompt_of(12, 2));
  session->reset();
  session->extend(prompt_of(60, 5));
  session->rollback(checkpoint);
  EXPECT_EQ(logits_of(*session, prompt_of(12, 2)), expected);
  auto other = engine->open_session();
  other->rollback(checkpoint);
  session = nullptr;
  EXPECT_EQ(logits_of(*other, prompt_of(12, 2)), expected);
}

// Every layout and split that a file may come in.
TEST_P(Sessions, AnImportedSessionGoesOnWithTheSameBits) {
  auto engine = Engine::load(options());
  auto held = read(*engine, prompt_of(37)).session;
  held->save(path());
  const std::vector<float> expected = logits_of(*held, prompt_of(12, 2));
  const SessionImage image = read_session_file(path());
  for (int64_t ranks : {1, 2, 3, 4, 7}) {
    const bool is_possible = families::can_be_shared(options(), ranks);
    ASSERT_TRUE(is_possible || ranks > 1);
    for (const auto packing : {StatePacking::kAligned, StatePacking::kContract}) {
      for (const auto conv : {ConvLayout::kSd, ConvLayout::kDs}) {
        std::vector<SessionImage> parts;
        try {
          for (int64_t rank = 0; rank < ranks; ++rank)
            parts.push_back(convert_session_image({&image, 1}, {packing, conv, 5, {ranks, rank}}));
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ErrorCode::kInvalidConfig) << error.what();
          ASSERT_NE(std::string(error.what()).find("layer '"), std::string::npos) << error.what();
          ASSERT_FALSE(is_possible) << error.what();
          continue;
        }
        ASSERT_TRUE(is_possible) << ranks << " ranks";
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const std::string part = path("part" + std::to_string(rank));
          write_session_file(part, parts[static_cast<size_t>(rank)]);
          parts[static_cast<size_t>(rank)] = read_session_file(part);
        }
        if (ranks == 1) {  // an engine takes any layout of a whole session as it is
          auto session = engine->open_session();
          session->load(path("part0"));
          EXPECT_EQ(logits_of(*session, prompt_of(12, 2)), expected);
        }
        write_session_file(path("joined"), convert_session_image(parts, {}));
        auto session = engine->open_session();
        session->load(path("joined"));
        EXPECT_EQ(logits_of(*session, prompt_of(12, 2)), expected) << ranks << " ranks";
      }
    }
  }
}

// The shapes of a layer's states, or why it has none for so many ranks: a refusal that names their number.
std::vector<Shape> shapes_or_refusal(int64_t ranks, const std::function<std::vector<Shape>()>& shapes) {
  try {
    return shapes();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig) << error.what();
    EXPECT_NE(std::string(error.what()).find(std::to_string(ranks)), std::string::npos) << error.what();
    return {};
  }
}

TEST_P(Sessions, SharesHaveTheShapesThatTheLayersDeclareOrNone) {
  const ModelDescription whole = describe_model(options_for(GetParam()));
  for (int64_t ranks : {1, 2, 3, 4, 5, 7, 8, 1024})
    for (const AttentionLayerBase* any : whole.config->layers) {
      const auto* layer = dynamic_cast<const MambaBase*>(any);
      if (layer == nullptr) continue;
      SCOPED_TRACE(fmt::format("layer '{}' of {} ranks", layer->layer_name(), ranks));
      whole.config->parallel.tensor_parallel_size = 1;
      const std::vector<DeclaredState> states = layer->declared_states();
      whole.config->parallel.tensor_parallel_size = ranks;
      const auto declared = shapes_or_refusal(ranks, [&] { return layer->get_state_shape(); });
      const auto shared = shapes_or_refusal(ranks, [&] {
        std::vector<Shape> shapes;
        for (const DeclaredState& state : states)
          shapes.push_back(local_shape(state.split, state.shape, {ranks, ranks - 1}, layer->layer_name()));
        return shapes;
      });
      EXPECT_EQ(shared, declared);
      EXPECT_TRUE(ranks > 1 || shared.size() == states.size());
    }
}

TEST_P(Sessions, AnEngineOfOtherPagesTakesTheSession) {
  auto engine = Engine::load(options());
  auto held = read(*engine, prompt_of(37)).session;
  held->save(path());
  const std::vector<int32_t> expected = ids_of(held->generate(greedy(12)));
  EngineOptions other = options();
  other.block_size = 7;
  other.max_num_seqs = 2;
  auto another = Engine::load(other);
  auto session = another->open_session();
  session->load(path());
  EXPECT_EQ(ids_of(session->generate(greedy(12))), expected);
}

TEST_P(Sessions, AFileThatDoesNotFitLeavesTheSessionAsItWas) {
  auto engine = Engine::load(options());
  read(*engine, prompt_of(37)).session->save(path());
  const std::string good = read_text_file(path());
  auto session = read(*engine, prompt_of(5, 9)).session;
  const auto refused = [&](Session& by, ErrorCode code, const std::string& says) {
    try {
      by.load(path());
      ADD_FAILURE() << "loaded, expected: " << says;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  const auto write = [&](const std::string& bytes) { std::ofstream(path(), std::ios::binary) << bytes; };
  for (size_t at = 70; at < good.size(); at += good.size() / 40 + 1) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    write(bad);
    refused(*session, ErrorCode::kInvalidData, "");
  }
  write(good.substr(0, good.size() - 1));
  refused(*session, ErrorCode::kInvalidData, "cut off");
  write(good);

  EngineOptions shorter = options();
  shorter.max_model_len = 36;
  auto small = Engine::load(shorter);
  auto in_small = small->open_session();
  refused(*in_small, ErrorCode::kContextLength, "37 tokens");

  EngineOptions other_dtype = options();
  other_dtype.mamba_cache_dtype = other_dtype.mamba_ssm_cache_dtype = other_dtype.kv_cache_dtype = DType::kFloat16;
  auto half = Engine::load(other_dtype);
  auto in_half = half->open_session();
  refused(*in_half, ErrorCode::kInvalidConfig, "float16");

  EXPECT_EQ(session->tokens().size(), 5u);
  EXPECT_NO_THROW(session->extend(prompt_of(3)));
  EXPECT_NO_THROW(session->load(path()));
}

TEST_P(Sessions, NothingOfThemLeaks) {
  auto engine = Engine::load(options());
  const int64_t slots = engine->free_state_slots(), pages = engine->free_attention_pages();
  for (int i = 0; i < 8; ++i) {
    auto session = read(*engine, prompt_of(20 + i)).session;
    auto fork = session->fork();
    const SessionCheckpoint checkpoint = fork->checkpoint();
    fork->extend(prompt_of(9 + i, 2));
    session->save(path());
    fork->load(path());
    session->rollback(checkpoint);
    session->extend(prompt_of(3, 3));
    fork->rollback(checkpoint);
    if (i % 2 == 0) session->reset();
  }
  EXPECT_EQ(engine->free_state_slots(), slots);
  EXPECT_EQ(engine->free_attention_pages(), pages);
}

INSTANTIATE_TEST_SUITE_P(Families, Sessions, testing::ValuesIn(families::names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Replaying, Sessions, testing::ValuesIn(families::replaying_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Sharing, Sessions, testing::ValuesIn(families::sharing_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Narrow, Sessions, testing::ValuesIn(families::narrow_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

TEST(Session, OfAnotherModelIsRefusedByName) {
  const std::string path = testing::TempDir() + "coluber_other_model_" + std::to_string(::getpid());
  auto engine = Engine::load(options_for("mamba2"));
  auto session = engine->open_session();
  EXPECT_THROW(session->save(path), Error) << "nothing to save";
  session->extend(prompt_of(5));
  session->save(path);
  auto other = Engine::load(options_for("lfm2"));
  auto in_other = other->open_session();
  try {
    in_other->load(path);
    ADD_FAILURE() << "a session of another model was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_NE(std::string(error.what()).find("another model ('mamba2', "), std::string::npos) << error.what();
  }
  std::filesystem::remove(path);
}

TEST(Session, ForksWithoutASeedSayDifferentThings) {
  auto engine = Engine::load(options_for("lfm2"));
  auto session = engine->open_session();
  session->extend(prompt_of(5));
  SamplingParams sampling = greedy(24);
  sampling.temperature = 1.5f;
  auto fork = session->fork();
  EXPECT_NE(ids_of(session->generate(sampling)), ids_of(fork->generate(sampling)));
  sampling.seed = 5;
  auto a = engine->open_session(), b = engine->open_session();
  a->extend(prompt_of(5));
  b->extend(prompt_of(5));
  EXPECT_EQ(ids_of(a->generate(sampling)), ids_of(b->generate(sampling)));
}

TEST(Session, CachedTokensAreThoseThatWereHeldBefore) {
  auto engine = Engine::load(options_for("lfm2"));
  auto session = engine->open_session();
  session->extend(prompt_of(10));
  EXPECT_EQ(session->generate(greedy(4)).cached_tokens, 0);
  session->extend(session->pending());
  session->extend(prompt_of(6, 2));
  const RequestOutput output = session->generate(greedy(4));
  EXPECT_EQ(output.prompt_tokens, 20);
  EXPECT_EQ(output.cached_tokens, 13);
}

}  // namespace
}  // namespace coluber
