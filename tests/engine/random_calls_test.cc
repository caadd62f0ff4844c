// SPDX-License-Identifier: Apache-2.0
//
// Calls of the public interface in random orders, with two engines, several sessions, checkpoints and requests alive at
// once: whatever was called before, a session holds exactly its tokens, a request gives what it gives alone, and at the
// end nothing is held.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>

#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::options_for;
using families::prompt_of;

constexpr int64_t kMaxModelLen = 96;
constexpr int kCalls = 400;

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("a callback's own") {}
};

// One engine, a second one as the judge, and what each living thing must hold.
class Caller {
 public:
  Caller(const std::string& family, uint32_t seed) : random_(seed) {
    EngineOptions options = options_for(family);
    options.max_model_len = kMaxModelLen;
    options.max_num_batched_tokens = 11;
    options.max_num_seqs = 3;
    options.poison_pools = true;
    engine_ = Engine::load(options);
    options.max_num_batched_tokens = 512;
    judge_ = Engine::load(options);
    slots_ = engine_->free_state_slots();
    pages_ = engine_->free_attention_pages();
  }

  void call() {
    switch (below(14)) {
      case 0:
        return open();
      case 1:
        return close();
      case 2:
      case 3:
      case 4:
        return extend();
      case 5:
        return generate();
      case 6:
        return checkpoint();
      case 7:
      case 8:
        return rollback();
      case 9:
        return add();
      case 10:
        return abort();
      case 11:
        return fork();
      case 12:
        return save_and_load();
      default:
        return step();
    }
  }

  void finish() {
    while (engine_->has_unfinished_requests()) step();
    sessions_.clear();
    engine_->clear_prefix_cache();
    EXPECT_LE(engine_->free_state_slots() + static_cast<int64_t>(checkpoints_.size()), slots_);
    checkpoints_.clear();  // outlive the sessions they were made of
    EXPECT_EQ(engine_->free_state_slots(), slots_);
    EXPECT_EQ(engine_->free_attention_pages(), pages_);
  }

 private:
  struct Held {
    std::unique_ptr<Session> session;
    std::vector<int32_t> tokens;
  };
  struct Marked {
    SessionCheckpoint checkpoint;
    std::vector<int32_t> tokens;
  };

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint32_t>(n)); }
  Held* any_session() {
    return sessions_.empty() ? nullptr : &sessions_[static_cast<size_t>(below(std::ssize(sessions_)))];
  }
  std::vector<int32_t> ids(int64_t length) { return prompt_of(length, random_()); }

  void open() {
    if (sessions_.size() < 5) sessions_.push_back({engine_->open_session(), {}});
  }
  void close() {
    if (!sessions_.empty() && below(3) == 0) sessions_.erase(sessions_.begin() + below(std::ssize(sessions_)));
  }

  // The session holds its tokens: what comes next is what a session that read them at once gives.
  void judge(const Held& held) {
    ASSERT_TRUE(std::ranges::equal(held.session->tokens(), held.tokens));
    if (held.tokens.empty()) return;
    auto fresh = judge_->open_session();
    fresh->extend(held.tokens);
    const auto expected = fresh->last_logits(), found = held.session->last_logits();
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(expected[i], found[i], 2e-4f) << "after " << held.tokens.size();
  }

  void extend() {
    Held* held = any_session();
    if (held == nullptr) return;
    const std::vector<int32_t> more = ids(below(15));
    const auto before = std::ssize(held->tokens);
    const bool throws = below(6) == 0, watched = below(4) == 0;
    if (watched) held->session->set_hidden_sink([this](int, const float*, int64_t, int64_t) { ++hidden_rows_; });
    try {
      const auto sees = [&](const float*, int64_t) {
        if (throws) throw Stop();
      };
      if (throws || below(2) == 0)
        held->session->extend(more, below(6), sees);
      else
        held->session->extend(more, below(6));
      held->tokens.insert(held->tokens.end(), more.begin(), more.end());
    } catch (const Stop&) {  // the step was done; what comes after it was not fed
      const auto now = held->session->tokens();
      ASSERT_GT(std::ssize(now), before);
      held->tokens.insert(held->tokens.end(), more.begin(), more.begin() + (std::ssize(now) - before));
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kContextLength) << error.what();
      ASSERT_GT(before + std::ssize(more), kMaxModelLen);
    }
    held->session->set_hidden_sink({});
    judge(*held);
  }

  void generate() {
    Held* held = any_session();
    if (held == nullptr || held->tokens.empty()) return;
    SamplingParams sampling = greedy(1 + below(8));
    if (std::ssize(held->tokens) >= kMaxModelLen) {
      EXPECT_THROW(held->session->generate(sampling), Error);
      return judge(*held);
    }
    const int64_t leave_after = below(12);
    const bool throws = below(2) == 0;
    std::vector<int32_t> tokens;
    try {
      const RequestOutput output = held->session->generate(sampling, [&](const TokenOutput& token, const std::string&) {
        tokens.push_back(token.id);
        if (std::ssize(tokens) < leave_after || leave_after == 0) return true;
        if (throws) throw Stop();
        return false;
      });
      ASSERT_EQ(ids_of(output), tokens);
    } catch (const Stop&) {
    }
    ASSERT_FALSE(tokens.empty());
    held->tokens.insert(held->tokens.end(), tokens.begin(), tokens.end() - 1);
    judge(*held);
  }

  void fork() {
    Held* held = any_session();
    if (held == nullptr || sessions_.size() >= 5) return;
    Held second{held->session->fork(), held->tokens};
    sessions_.push_back(std::move(second));
    judge(sessions_.back());
  }

  void save_and_load() {
    Held* from = any_session();
    if (from == nullptr) return;
    const std::string path = testing::TempDir() + "coluber_random_calls_" + std::to_string(::getpid());
    if (from->tokens.empty()) {
      EXPECT_THROW(from->session->save(path), Error);
      return;
    }
    from->session->save(path);
    Held* to = any_session();
    to->session->load(path);
    to->tokens = from->tokens;
    std::filesystem::remove(path);
    judge(*to);
  }

  void checkpoint() {
    Held* held = any_session();
    if (held == nullptr) return;
    if (held->tokens.empty()) {
      EXPECT_THROW(held->session->checkpoint(), Error);
      return;
    }
    if (checkpoints_.size() >= 6) checkpoints_.erase(checkpoints_.begin() + below(6));
    checkpoints_.push_back({held->session->checkpoint(), held->tokens});
  }

  void rollback() {
    Held* held = any_session();
    if (held == nullptr || checkpoints_.empty()) return;
    if (below(5) == 0) {
      held->session->reset();
      held->tokens.clear();
      return judge(*held);
    }
    const Marked& marked = checkpoints_[static_cast<size_t>(below(std::ssize(checkpoints_)))];
    held->session->rollback(marked.checkpoint);
    held->tokens = marked.tokens;
    judge(*held);
  }

  void add() {
    Request request{ids(below(40)), greedy(1 + below(20))};
    const bool fine = !request.prompt_ids.empty();
    if (below(4) == 0) request.sampling.max_tokens = std::numeric_limits<int64_t>::max();
    if (!fine) {
      EXPECT_THROW(engine_->add_request(request), Error);
      return;
    }
    if (requests_.size() < 8) requests_[engine_->add_request(request)] = {request, {}};
  }
  void abort() {
    engine_->abort(987654);  // nobody's
    if (requests_.empty() || below(2) == 0) return;
    const auto it = std::next(requests_.begin(), below(std::ssize(requests_)));
    engine_->abort(it->first);
    requests_.erase(it);
  }

  void step() {
    for (const RequestOutput& output : engine_->step()) {
      ASSERT_TRUE(requests_.contains(output.id));
      auto& [request, tokens] = requests_.at(output.id);
      for (const TokenOutput& token : output.tokens) tokens.push_back(token.id);
      if (output.finish_reason == FinishReason::kNone) continue;
      ASSERT_EQ(output.finish_reason, FinishReason::kLength) << output.error;
      auto alone = judge_->open_session();
      alone->extend(request.prompt_ids);
      const int64_t room = kMaxModelLen - std::ssize(request.prompt_ids);
      request.sampling.max_tokens = std::min(request.sampling.max_tokens, room);
      EXPECT_EQ(ids_of(alone->generate(request.sampling)), tokens);
      requests_.erase(output.id);
    }
  }

  std::mt19937 random_;
  std::unique_ptr<Engine> engine_, judge_;
  int64_t slots_ = 0, pages_ = 0, hidden_rows_ = 0;
  std::vector<Held> sessions_;
  std::vector<Marked> checkpoints_;
  std::map<RequestId, std::pair<Request, std::vector<int32_t>>> requests_;
};

class RandomCalls : public testing::TestWithParam<std::string> {};

TEST_P(RandomCalls, NoOrderLeavesATrace) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    Caller caller(GetParam(), seed);
    for (int i = 0; i < kCalls && !testing::Test::HasFatalFailure(); ++i) caller.call();
    caller.finish();
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RandomCalls, testing::ValuesIn(families::names()),
                         [](const auto& info) { return info.param; });

TEST(MinTokens, HoldBackEveryKindOfEnd) {
  EngineOptions options;
  options.model = std::string(COLUBER_SOURCE_DIR) + "/models/asp-7m";
  auto engine = Engine::load(options);
  auto session = engine->open_session();
  session->extend(engine->encode("Once upon a time"));
  SamplingParams sampling = greedy(40);
  const std::string whole = session->generate(sampling).text;
  ASSERT_NE(whole.find(' '), std::string::npos);
  sampling.stop = {" "};
  sampling.min_tokens = 10;
  session->reset();
  session->extend(engine->encode("Once upon a time"));
  const RequestOutput output = session->generate(sampling);
  EXPECT_EQ(output.finish_reason, FinishReason::kStop);
  EXPECT_GT(output.completion_tokens, 10);
  EXPECT_TRUE(whole.starts_with(output.text)) << output.text;
}

}  // namespace
}  // namespace coluber
