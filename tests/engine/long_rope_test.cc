// SPDX-License-Identifier: Apache-2.0
// Rotations that change with the length of a sequence: the logits are those of one pass of transformers over the whole
// sequence, however it was fed (tests/data/rope).
#include <gtest/gtest.h>

#include "model_copy.h"

namespace coluber {
namespace {

using Logits = std::vector<float>;

class LongRope : public testing::Test {
 protected:
  LongRope() : golden_(read_json_file(std::string(COLUBER_SOURCE_DIR) + "/tests/data/rope/rope.json")) {
    for (const Json& id : golden_.at("ids").as_array()) ids_.push_back(static_cast<int32_t>(id.as_int()));
  }

  const Json& model(const std::string& name) const {
    for (const Json& model : golden_.at("models").as_array())
      if (model.at("name").as_string() == name) return model;
    throw make_error(ErrorCode::kNotFound, "no model {} in rope.json", name);
  }
  std::unique_ptr<Engine> engine(const std::string& name) {
    ModelCopy copy("lfm2");
    for (const auto& [key, value] : model(name).at("config").as_object()) copy.config().set(key, value);
    copy.write_all();
    return Engine::load(copy.options());
  }
  std::span<const int32_t> ids(int64_t begin, int64_t end) const {
    return std::span(ids_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  static Logits last(const Session& session) { return {session.last_logits().begin(), session.last_logits().end()}; }
  Logits one_pass(Engine& engine, int64_t length) const {
    const auto session = engine.open_session();
    session->extend(ids(0, length));
    return last(*session);
  }
  static void expect_near(const Logits& got, const Json& want) {
    ASSERT_EQ(got.size(), want.as_array().size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want.as_array()[i].as_double(), 1e-4) << i;
  }

  Json golden_;
  std::vector<int32_t> ids_;
};

TEST_F(LongRope, OnePassGivesWhatTransformersGivesBelowAndBeyondTheTrainedLength) {
  for (const char* name : {"longrope", "yarn"}) {
    const auto loaded = engine(name);
    for (const auto& [length, want] : model(name).at("logits").as_object()) {
      SCOPED_TRACE(std::string(name) + ", " + length + " tokens");
      expect_near(one_pass(*loaded, std::stoll(length)), want);
    }
  }
}

TEST_F(LongRope, ChunksAndCallsDoNotMatter) {
  const auto loaded = engine("longrope");
  const Logits want = one_pass(*loaded, 64);
  for (int64_t chunk : {1, 7, 31, 33}) {
    const auto session = loaded->open_session();
    session->extend(ids(0, 64), chunk);
    EXPECT_EQ(last(*session), want) << "chunks of " << chunk;
  }
  for (int64_t first : {1, 31, 32, 33, 50}) {
    const auto session = loaded->open_session();
    session->extend(ids(0, first));
    session->extend(ids(first, 64));
    EXPECT_EQ(last(*session), want) << first << " tokens, then the rest";
  }
  const auto session = loaded->open_session();
  for (int64_t i = 0; i < 64; ++i) session->extend(ids(i, i + 1));
  EXPECT_EQ(last(*session), want) << "tokens one by one";
}

TEST_F(LongRope, WhatWasToldOnceIsNotToldAgain) {
  const auto loaded = engine("longrope");
  const auto session = loaded->open_session();
  int64_t rows = 0, hidden_rows = 0;
  session->set_hidden_sink([&](int index, const float*, int64_t n, int64_t) { hidden_rows += index == 0 ? n : 0; });
  for (auto [begin, end] : {std::pair{0, 20}, {20, 40}, {40, 64}})
    session->extend(ids(begin, end), 7, [&](const float*, int64_t n) { rows += n; });
  EXPECT_EQ(rows, 64);
  EXPECT_EQ(hidden_rows, 64);
}

TEST_F(LongRope, ASessionThatGoesBackIsShortAgain) {
  const auto loaded = engine("longrope");
  const auto session = loaded->open_session();
  session->extend(ids(0, 20));
  const SessionCheckpoint at20 = session->checkpoint();
  const Logits logits20 = last(*session);
  session->extend(ids(20, 40));
  const SessionCheckpoint at40 = session->checkpoint();
  const Logits logits40 = last(*session);
  session->extend(ids(40, 64));
  session->rollback(at40);
  EXPECT_EQ(last(*session), logits40);
  session->extend(ids(40, 64));
  EXPECT_EQ(last(*session), one_pass(*loaded, 64));
  session->rollback(at20);
  EXPECT_EQ(last(*session), logits20);
  EXPECT_EQ(session->tokens().size(), 20u);
  session->extend(ids(20, 32));
  expect_near(last(*session), model("longrope").at("logits").at("32"));
}

TEST_F(LongRope, AForkThatGrowsLongLeavesTheOtherShort) {
  const auto loaded = engine("longrope");
  const auto session = loaded->open_session();
  session->extend(ids(0, 20));
  const auto fork = session->fork();
  fork->extend(ids(20, 64));
  EXPECT_EQ(last(*fork), one_pass(*loaded, 64));
  session->extend(ids(20, 32));
  EXPECT_EQ(last(*session), one_pass(*loaded, 32));
}

// Requests that grow past the length among others that do not, and one whose prompt is beyond it at once.
TEST_F(LongRope, RequestsInOneBatchGiveWhatTheyGiveAlone) {
  const auto loaded = engine("longrope");
  auto request = [&](int64_t length) {
    Request made{{ids(0, length).begin(), ids(0, length).end()}, {}};
    made.sampling.temperature = 0;
    made.sampling.max_tokens = 12;
    made.sampling.ignore_eos = true;
    return made;
  };
  // The next token of each longer text, computed from its start.
  auto by_full_passes = [&](int64_t length) {
    std::vector<int32_t> text(ids_.begin(), ids_.begin() + length);
    for (int i = 0; i < 12; ++i) {
      const auto session = loaded->open_session();
      session->extend(text);
      const auto logits = session->last_logits();
      text.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    return std::vector<int32_t>(text.begin() + length, text.end());
  };
  std::map<RequestId, int64_t> lengths;
  for (int64_t length : {5, 25, 32, 60}) lengths[loaded->add_request(request(length))] = length;
  std::map<RequestId, std::vector<int32_t>> got;
  while (loaded->has_unfinished_requests())
    for (const RequestOutput& output : loaded->step())
      for (const TokenOutput& token : output.tokens) got[output.id].push_back(token.id);
  for (const auto& [id, length] : lengths) EXPECT_EQ(got[id], by_full_passes(length)) << "a prompt of " << length;
}

}  // namespace
}  // namespace coluber
