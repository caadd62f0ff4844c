// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.h"

namespace coluber {
namespace {

class ThreadPoolSizes : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolSizes, testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolSizes, RunsEveryIndexExactlyOnce) {
  ThreadPool pool(GetParam());
  for (const int64_t n : {0, 1, 2, 3, 7, 64, 1000, 4097}) {
    for (const int64_t grain : {int64_t{1}, int64_t{3}, int64_t{64}, int64_t{5000}, INT64_MAX}) {
      std::vector<std::atomic<int>> counts(static_cast<size_t>(n));
      pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int) {
        EXPECT_EQ(begin % grain, 0);
        EXPECT_TRUE(end - begin == grain || end == n);
        for (int64_t i = begin; i < end; ++i) counts[static_cast<size_t>(i)].fetch_add(1, std::memory_order_relaxed);
      });
      for (const auto& count : counts) ASSERT_EQ(count.load(), 1) << "n " << n << ", grain " << grain;
    }
  }
}

TEST_P(ThreadPoolSizes, ThousandsOfTinyLoopsSeeTheirOwnContext) {
  ThreadPool pool(GetParam());
  for (int64_t loop = 0; loop < 5000; ++loop) {
    // On the stack of this iteration: a worker that touched it after the loop would write into a later one's.
    const int64_t n = loop % 7;
    std::atomic<int64_t> sum{0};
    pool.parallel_for(n, 1, [&sum, loop](int64_t begin, int64_t, int) { sum.fetch_add(loop + begin); });
    ASSERT_EQ(sum.load(), n * loop + n * (n - 1) / 2);
  }
}

TEST_P(ThreadPoolSizes, WritesOfBodiesAreSeenAfterTheLoop) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(512, 0);  // not atomic: the sanitizer for threads watches the join
  for (int64_t loop = 1; loop <= 300; ++loop) {
    pool.parallel_for(512, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++values[static_cast<size_t>(i)];
    });
    for (const int64_t value : values) ASSERT_EQ(value, loop);
  }
}

TEST_P(ThreadPoolSizes, NoTwoBodiesShareAThreadNumber) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(static_cast<size_t>(pool.size()));
  std::atomic<int> clashes{0};
  for (int loop = 0; loop < 200; ++loop) {
    pool.parallel_for(64, 1, [&](int64_t, int64_t, int thread) {
      ASSERT_GE(thread, 0);
      ASSERT_LT(thread, pool.size());
      if (inside[static_cast<size_t>(thread)].fetch_add(1) != 0) clashes.fetch_add(1);
      inside[static_cast<size_t>(thread)].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, WorkersThatParkedComeBack) {
  ThreadPool pool(3);
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than any spin
    std::atomic<int> arrived{0};
    std::atomic<bool> met{false};
    // The first body waits for the second, which only another thread can start.
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int) {
      if (arrived.fetch_add(1) != 0) return;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (arrived.load() < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      met = arrived.load() == 2;
    });
    ASSERT_TRUE(met.load()) << "no worker joined loop " << loop;
  }
}

TEST(ThreadPool, IdleThreadsTakeChunksOfABusyOne) {
  ThreadPool pool(2);
  std::atomic<bool> others_done{false};
  std::atomic<int> done{0};
  std::atomic<int64_t> by_stuck_thread{0};
  std::atomic<int> stuck_thread{-1};
  pool.parallel_for(16, 1, [&](int64_t begin, int64_t, int thread) {
    if (begin == 0) {
      // Whoever runs chunk 0 is held until the other thread has done all the rest.
      stuck_thread = thread;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (done.load() < 15 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      others_done = done.load() == 15;
      return;
    }
    if (thread == stuck_thread.load()) by_stuck_thread.fetch_add(1);
    done.fetch_add(1);
  });
  EXPECT_TRUE(others_done.load());
  EXPECT_EQ(by_stuck_thread.load(), 0);
}

TEST(ThreadPool, SameThreadMeetsSameChunksWhenNobodySteals) {
  ThreadPool pool(1);
  std::vector<int64_t> order;
  pool.parallel_for(10, 4, [&](int64_t begin, int64_t end, int) { order.insert(order.end(), {begin, end}); });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 4, 4, 8, 8, 10}));
}

TEST(ThreadPool, PinnedPoolWorks) {
  ThreadPool pool(2, true);
  std::atomic<int64_t> sum{0};
  pool.parallel_for(100, 1, [&](int64_t begin, int64_t, int) { sum.fetch_add(begin); });
  EXPECT_EQ(sum.load(), 4950);
}

TEST(ThreadPool, RefusesASizeBelowOne) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-3), Error);
}

TEST(ThreadPool, RefusesAGrainBelowOneAndStaysUsable) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.parallel_for(10, 0, [](int64_t, int64_t, int) {}), Error);
  std::atomic<int> calls{0};
  pool.parallel_for(4, 1, [&](int64_t, int64_t, int) { calls.fetch_add(1); });
  EXPECT_EQ(calls.load(), 4);
}

TEST(ThreadPool, ManyPoolsLiveAndDie) {
  for (int i = 0; i < 100; ++i) {
    ThreadPool pool(1 + i % 4);
    if (i % 2 == 0) continue;  // one that never ran a loop ends too
    std::atomic<int> calls{0};
    pool.parallel_for(8, 1, [&](int64_t, int64_t, int) { calls.fetch_add(1); });
    ASSERT_EQ(calls.load(), 8);
  }
}

TEST(ThreadPool, UsableCoresIsWithinTheAffinity) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), CPU_COUNT(&allowed));
}

}  // namespace
}  // namespace coluber
