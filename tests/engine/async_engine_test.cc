// SPDX-License-Identifier: Apache-2.0
#include "coluber/async_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "families.h"

namespace coluber {
namespace {

using families::greedy;
using families::ids_of;
using families::options_for;
using families::prompt_of;

TEST(AsyncEngine, AnswersManyThreadsAsOneEngineWould) {
  auto plain = Engine::load(options_for("lfm2"));
  std::vector<std::vector<int32_t>> expected;
  for (uint32_t i = 0; i < 12; ++i) {
    plain->add_request({prompt_of(10 + i, i), greedy(8)});
    std::vector<int32_t> ids;
    while (plain->has_unfinished_requests())
      for (const RequestOutput& output : plain->step())
        for (const TokenOutput& token : output.tokens) ids.push_back(token.id);
    expected.push_back(ids);
  }
  AsyncEngine engine(Engine::load(options_for("lfm2")));
  std::vector<std::vector<int32_t>> found(12);
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (uint32_t i = thread; i < 12; i += 4)
        engine.wait(engine.add_request({prompt_of(10 + i, i), greedy(8)}, [&found, i](const RequestOutput& output) {
          for (const TokenOutput& token : output.tokens) found[i].push_back(token.id);
        }));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, expected);
  EXPECT_EQ(engine.stats().leaked_slots, 0);
}

TEST(AsyncEngine, AnAbortFromAnyThreadEndsTheRequestAndTellsIt) {
  AsyncEngine engine(Engine::load(options_for("lfm2")));
  std::atomic<int> tokens = 0;
  std::atomic<bool> aborted = false;
  const RequestId id = engine.add_request({prompt_of(5), greedy(100000)}, [&](const RequestOutput& output) {
    tokens += static_cast<int>(output.tokens.size());
    if (output.finish_reason == FinishReason::kAbort) aborted = true;
  });
  while (tokens < 3) std::this_thread::yield();
  engine.abort(id);
  engine.wait(id);
  EXPECT_TRUE(aborted);
  engine.abort(id);
  EXPECT_EQ(engine.stats().running, 0);
}

TEST(AsyncEngine, EndsWhileRequestsRunAndRefusesWhatCannotRun) {
  std::atomic<int> outputs = 0;
  {
    AsyncEngine engine(Engine::load(options_for("lfm2")));
    EXPECT_THROW(engine.add_request({{}, greedy(1)}, {}), Error);
    for (uint32_t i = 0; i < 3; ++i)
      engine.add_request({prompt_of(5, i), greedy(100000)}, [&](const RequestOutput&) { ++outputs; });
    while (outputs < 3) std::this_thread::yield();
  }
  EXPECT_GE(outputs, 3);
  EXPECT_THROW(AsyncEngine(nullptr), Error);
}

TEST(AsyncEngine, RequestsWaitWhileSessionsMakeWay) {
  EngineOptions options = options_for("lfm2");
  options.kv_cache_memory_bytes = int64_t{2} << 20;
  AsyncEngine engine(Engine::load(options));
  std::vector<std::shared_ptr<Session>> idle;
  const auto ask = [&] {
    Request request{prompt_of(300), greedy(1)};
    engine.with_engine([&](Engine& inside) { request.session = inside.open_session(); });
    std::shared_ptr<Session> session = request.session;
    ErrorCode code = ErrorCode::kOk;
    engine.wait(engine.add_request(std::move(request), [&](const RequestOutput& output) { code = output.error_code; }));
    engine.with_engine([&](Engine&) { idle.push_back(std::move(session)); });
    return code;
  };
  while (ask() == ErrorCode::kOk) ASSERT_LT(idle.size(), 10000U);

  std::thread closes;
  engine.on_lack_of_memory([&] {
    if (!closes.joinable()) closes = std::thread([&] { engine.with_engine([&](Engine&) { idle.resize(1); }); });
    return true;
  });
  EXPECT_EQ(ask(), ErrorCode::kOk);
  ASSERT_TRUE(closes.joinable());
  closes.join();
  engine.on_lack_of_memory([] { return false; });
  while (ask() == ErrorCode::kOk) ASSERT_LT(idle.size(), 10000U);
  engine.with_engine([&](Engine&) { idle.clear(); });
  EXPECT_EQ(engine.stats().leaked_slots, 0);
}

}  // namespace
}  // namespace coluber
