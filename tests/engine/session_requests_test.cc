// SPDX-License-Identifier: Apache-2.0
//
// Requests that go on from a session, in the batch with others: for every family they say what the whole text as one
// prompt would say, whatever becomes of them in between.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <stdexcept>

#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::options_for;
using families::prompt_of;

using Ids = std::vector<int32_t>;

Ids joined(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Takes a few tokens and then breaks.
class BreaksLater : public TokenConstraint {
 public:
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<BreaksLater>(); }
  void fill_mask(std::span<uint32_t>) override {}
  bool accept(int32_t) override { return ++accepted_ < 4; }
  bool is_terminated() const override { return false; }

 private:
  int accepted_ = 0;
};

class SessionRequests : public testing::TestWithParam<std::string> {
 protected:
  static EngineOptions options() {
    EngineOptions options = options_for(GetParam());
    options.deterministic = !families::replays(GetParam());  // which replay cannot be
    options.poison_pools = true;
    options.max_num_batched_tokens = 16;
    return options;
  }

  struct Answer {
    Ids ids;
    RequestOutput last;
  };
  static std::map<RequestId, Answer> run_all(Engine& engine) {
    std::map<RequestId, Answer> answers;
    while (engine.has_unfinished_requests())
      for (const RequestOutput& output : engine.step()) {
        Answer& answer = answers[output.id];
        for (const TokenOutput& token : output.tokens) answer.ids.push_back(token.id);
        answer.last = output;
      }
    return answers;
  }
  static Answer run(Engine& engine, Request request) {
    const RequestId id = engine.add_request(std::move(request));
    return run_all(engine).at(id);
  }
  static Request turn(const std::shared_ptr<Session>& session, Ids ids, int64_t tokens = 6) {
    Request request{std::move(ids), greedy(tokens)};
    request.session = session;
    return request;
  }
  static Ids all_of(const Session& session) {
    return joined({Ids(session.tokens().begin(), session.tokens().end()),
                   Ids(session.pending().begin(), session.pending().end())});
  }
  // What the text gives as one prompt, in an engine of its own.
  static Ids alone(const Ids& ids, int64_t tokens = 6) {
    auto engine = Engine::load(options());
    return run(*engine, {ids, greedy(tokens)}).ids;
  }

  const Ids first_ = prompt_of(21), second_ = prompt_of(9, 2);
};

TEST_P(SessionRequests, GoOnAsTheWholeTextWouldBesideOthers) {
  auto engine = Engine::load(options());
  std::shared_ptr<Session> session = engine->open_session();
  const Ids said = run(*engine, turn(session, first_)).ids;
  EXPECT_EQ(said, alone(first_));
  EXPECT_EQ(all_of(*session), joined({first_, said}));
  EXPECT_EQ(session->pending().size(), 1u);

  std::shared_ptr<Session> fork = session->fork();
  const RequestId mine = engine->add_request(turn(session, second_));
  const RequestId forks = engine->add_request(turn(fork, {}));
  const RequestId others = engine->add_request({prompt_of(30, 3), greedy(6)});
  std::map<RequestId, Answer> answers = run_all(*engine);
  EXPECT_EQ(answers[mine].ids, alone(joined({first_, said, second_})));
  EXPECT_EQ(answers[forks].ids, alone(joined({first_, said})));
  EXPECT_EQ(answers[others].ids, alone(prompt_of(30, 3)));
  EXPECT_EQ(answers[mine].last.prompt_tokens, 36);
  EXPECT_EQ(answers[mine].last.cached_tokens, 26) << "all but the last token of the first answer";
  EXPECT_EQ(engine->stats().leaked_slots, 0);
  session = fork = nullptr;
  EXPECT_EQ(engine->audit(), "");
}

TEST_P(SessionRequests, ThatBeginASessionLeaveWhatTheyReadToOthers) {
  auto engine = Engine::load(options());
  std::shared_ptr<Session> session = engine->open_session();
  const Ids said = run(*engine, turn(session, prompt_of(64))).ids;
  const Answer other = run(*engine, {joined({prompt_of(64), said, second_}), greedy(6)});
  EXPECT_EQ(other.ids, alone(joined({prompt_of(64), said, second_})));
  EXPECT_GT(other.last.cached_tokens, 0);
  const Ids second = run(*engine, turn(session, second_)).ids;
  EXPECT_EQ(second, alone(joined({prompt_of(64), said, second_})));
  const Ids third = prompt_of(40, 5);
  run(*engine, turn(session, third));
  const Answer late = run(*engine, {joined({prompt_of(64), said, second_, second, third, second_}), greedy(1)});
  EXPECT_LE(late.last.cached_tokens, 64 + 6 + 9 + 6) << "what is said in a session later is its own";
  session = nullptr;
  EXPECT_EQ(engine->audit(), "");
}

TEST_P(SessionRequests, ComeBackAfterTheyMadeRoom) {
  for (const PreemptionMode mode : {PreemptionMode::kPark, PreemptionMode::kRecompute}) {
    EngineOptions small = options();
    small.scheduling_policy = SchedulingPolicy::kPriority;
    small.max_num_seqs = 1;
    small.preemption = mode;
    auto engine = Engine::load(small);
    std::shared_ptr<Session> session = engine->open_session();
    const Ids said = run(*engine, turn(session, first_)).ids;
    Request request = turn(session, second_);
    request.priority = 1;
    const RequestId id = engine->add_request(std::move(request));
    Ids begun;
    for (int i = 0; i < 3; ++i)
      for (const RequestOutput& output : engine->step())
        for (const TokenOutput& token : output.tokens) begun.push_back(token.id);
    engine->add_request({prompt_of(30, 3), greedy(6)});
    std::map<RequestId, Answer> answers = run_all(*engine);
    EXPECT_EQ(engine->stats().preemptions, 1);
    EXPECT_EQ(joined({begun, answers[id].ids}), alone(joined({first_, said, second_})));
    EXPECT_EQ(engine->stats().leaked_slots, 0);
    session = nullptr;
    EXPECT_EQ(engine->audit(), "");
  }
}

TEST_P(SessionRequests, LeaveTheSessionAsItWasOrAsFarAsTheyCame) {
  auto engine = Engine::load(options());
  std::shared_ptr<Session> session = engine->open_session();
  const Ids said = run(*engine, turn(session, first_)).ids;
  const Ids before = all_of(*session);

  Request breaks = turn(session, second_);
  breaks.constraint = std::make_shared<BreaksLater>();
  EXPECT_EQ(run(*engine, std::move(breaks)).last.finish_reason, FinishReason::kError);
  EXPECT_EQ(all_of(*session), before);
  EXPECT_EQ(run(*engine, turn(session, second_)).ids, alone(joined({before, second_})));

  const RequestId id = engine->add_request(turn(session, prompt_of(40, 4)));
  EXPECT_THROW(session->extend(second_), Error) << "the request has it";
  EXPECT_THROW(engine->add_request(turn(session, second_)), Error);
  engine->step();
  engine->abort(id);
  const Ids held = all_of(*session);
  EXPECT_EQ(Ids(held.end() - 40, held.end()), prompt_of(40, 4)) << "its prompt, of which a part was read";
  EXPECT_EQ(run(*engine, turn(session, {})).ids, alone(held));
  EXPECT_EQ(engine->stats().leaked_slots, 0);
}

TEST_P(SessionRequests, DrawFromTheStreamOfTheirSession) {
  SamplingParams sampling = greedy(6);
  sampling.temperature = 1.5f;
  sampling.frequency_penalty = 0.5f;
  const auto answer = [&](Engine& engine, const std::shared_ptr<Session>& session, Ids ids, int64_t tokens) {
    Request request = turn(session, std::move(ids), tokens);
    sampling.max_tokens = tokens;
    request.sampling = sampling;
    return run(engine, std::move(request)).ids;
  };
  auto engine = Engine::load(options());
  std::shared_ptr<Session> session = engine->open_session();
  const Ids first = answer(*engine, session, first_, 3);
  const std::string path = testing::TempDir() + "coluber_stream_" + GetParam() + std::to_string(::getpid());
  session->save(path);
  const Ids rest = answer(*engine, session, {}, 5);

  auto later = Engine::load(options());
  std::shared_ptr<Session> restored = later->open_session();
  restored->load(path);
  std::remove(path.c_str());
  EXPECT_EQ(answer(*later, restored, {}, 5), rest) << "the file holds where its stream is";

  sampling.seed = 11;
  const Ids whole = answer(*later, later->open_session(), first_, 8);
  std::shared_ptr<Session> parts = later->open_session();
  EXPECT_EQ(joined({answer(*later, parts, first_, 3), answer(*later, parts, {}, 5)}), whole);
}

INSTANTIATE_TEST_SUITE_P(Families, SessionRequests, testing::ValuesIn(families::names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Replaying, SessionRequests, testing::ValuesIn(families::replaying_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Sharing, SessionRequests, testing::ValuesIn(families::sharing_names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

TEST(SessionRequest, WhatDoesNotGoTogetherIsRefused) {
  auto engine = Engine::load(options_for("lfm2"));
  auto other = Engine::load(options_for("lfm2"));
  std::shared_ptr<Session> session = engine->open_session();
  const auto refused = [&](const std::function<void(Request&)>& change) {
    Request request{prompt_of(5), greedy(2)};
    request.session = session;
    change(request);
    EXPECT_THROW(engine->add_request(std::move(request)), Error);
  };
  refused([](Request& request) { request.n = 2; });
  refused([](Request& request) { request.best_of = 2; });
  refused([](Request& request) { request.beam_width = 2; });
  refused([](Request& request) { request.sampling.prompt_logprobs = 1; });
  refused([](Request& request) { request.pooling = Pooling::kMean; });
  refused([](Request& request) { request.prompt_ids.clear(); });
  refused([&](Request& request) { request.session = other->open_session(); });
  Request fine{prompt_of(5), greedy(2)};
  fine.session = session;
  fine.cache_salt = "mine";
  engine->add_request(fine);
  while (engine->has_unfinished_requests()) engine->step();
  refused([](Request& request) { request.cache_salt = "mine"; });
}

TEST(SessionRequest, OfAFullContextIsRefusedAndAPromptCanBeReadAlone) {
  EngineOptions options = options_for("lfm2");
  options.max_model_len = 32;
  auto engine = Engine::load(options);
  std::shared_ptr<Session> session = engine->open_session();
  Request read{prompt_of(30), {}};
  read.session = session;
  read.pooling = Pooling::kLast;
  engine->add_request(read);
  while (engine->has_unfinished_requests()) engine->step();
  EXPECT_EQ(session->tokens().size(), 30u);
  Request more{prompt_of(2), greedy(4)};
  more.session = session;
  EXPECT_THROW(engine->add_request(more), Error);
}

}  // namespace
}  // namespace coluber
