// SPDX-License-Identifier: Apache-2.0
#include "cache/reuse_rates.h"

#include <gtest/gtest.h>

namespace coluber {
namespace {

constexpr auto kTurn = CheckpointKind::kTurnEnd;
constexpr auto kAlong = CheckpointKind::kAlong;

TEST(ReuseRates, BeforeAnythingIsKnownTheOldAreAskedForLess) {
  const ReuseRates rates;
  for (int64_t age = 1; age < 1 << 20; age *= 4)
    EXPECT_GT(rates.rate(kTurn, 0, age), rates.rate(kTurn, 0, 4 * age)) << age;
}

TEST(ReuseRates, KindsThatAreNeverAskedForAreToldFromThoseThatAre) {
  ReuseRates rates;
  for (int i = 0; i < 200; ++i) {
    rates.observe(kTurn, 0, 40, true);
    rates.observe(kAlong, 0, 40, false);
  }
  EXPECT_GT(rates.rate(kTurn, 0, 10), 4 * rates.rate(kAlong, 0, 10));
}

TEST(ReuseRates, WhatWasAskedForOnceAndIsNoMoreIsToldFromWhatIsNew) {
  ReuseRates rates;
  for (int i = 0; i < 200; ++i) {
    rates.observe(kTurn, 0, 40, true);
    rates.observe(kTurn, 1, 400, false);
  }
  EXPECT_GT(rates.rate(kTurn, 0, 10), 4 * rates.rate(kTurn, 1, 10));
}

// Think times: nobody answers at once, so that the newest of all would be the first to go.
TEST(ReuseRates, WhatWillBeAskedForSoonCountsAsSuch) {
  ReuseRates rates;
  for (int i = 0; i < 400; ++i) rates.observe(kTurn, 0, 40, true);
  EXPECT_GT(rates.rate(kTurn, 0, 0), 0.015);
  EXPECT_GT(rates.rate(kTurn, 0, 0), 4 * rates.rate(kTurn, 0, 400));
}

TEST(ReuseRates, FollowTrafficThatChanges) {
  ReuseRates rates;
  for (int i = 0; i < 10000; ++i) rates.observe(kTurn, 0, 40, true);
  const double before = rates.rate(kTurn, 0, 20);
  for (int i = 0; i < 3000; ++i) rates.observe(kTurn, 0, 400, false);
  EXPECT_LT(rates.rate(kTurn, 0, 20), before / 2);
}

TEST(ReuseRates, HaveAPlaceForEveryAge) {
  ReuseRates rates;
  rates.observe(kAlong, int64_t{1} << 40, int64_t{1} << 40, true);
  EXPECT_GT(rates.rate(kAlong, int64_t{1} << 40, int64_t{1} << 40), 0.0);
}

}  // namespace
}  // namespace coluber
