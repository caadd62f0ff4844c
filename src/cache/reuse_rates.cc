// SPDX-License-Identifier: Apache-2.0
#include "cache/reuse_rates.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace coluber {

namespace {

// Before anything is known: half of those that have become so old are asked for before they are twice as old. Counts as
// much as so many that were seen.
constexpr double kPriorStates = 5.0;
constexpr double kPriorAsked = 0.5;
// What was asked for so often of one class is as much as is remembered: traffic changes.
constexpr double kMostAsked = 2048.0;
constexpr int64_t kObservationsALesson = 32;

double length_of(int age) { return static_cast<double>(int64_t{1} << age); }

}  // namespace

ReuseRates::ReuseRates() { std::ranges::for_each(classes_, learn); }

int ReuseRates::age_class(int64_t age) noexcept {
  return std::min(static_cast<int>(std::bit_width(static_cast<uint64_t>(age) + 1)) - 1, kAges - 1);
}

size_t ReuseRates::class_of(CheckpointKind kind, int64_t uses) noexcept {
  return static_cast<size_t>(kind) * kUses + static_cast<size_t>(std::min<int64_t>(uses, kUses - 1));
}

// The rate within each age, and from that the best mean rate of all times that begin there.
void ReuseRates::learn(Ages& ages) {
  std::array<double, kAges> now{};
  std::array<double, kAges> ends{};
  for (int i = 0; i < kAges; ++i) {
    const auto at = static_cast<size_t>(i);
    now[at] = (ages.asked[at] + kPriorStates * kPriorAsked) / (ages.lived[at] + kPriorStates * length_of(i));
    ends[at] = -std::expm1(-now[at] * length_of(i));
  }
  for (size_t begin = 0; begin < kAges; ++begin) {
    double asked = 0.0, lived = 0.0, left = 1.0, best = 0.0;
    for (size_t i = begin; i < kAges; ++i) {
      asked += left * ends[i];
      lived += left * ends[i] / now[i];
      left *= 1.0 - ends[i];
      best = std::max(best, asked / lived);
    }
    ages.rate[begin] = best;
  }
}

void ReuseRates::observe(CheckpointKind kind, int64_t uses, int64_t age, bool is_asked_for) {
  Ages& ages = classes_[class_of(kind, uses)];
  const int last = age_class(age);
  for (int i = 0; i < last; ++i) ages.lived[static_cast<size_t>(i)] += length_of(i);
  ages.lived[static_cast<size_t>(last)] += static_cast<double>(age) + 2.0 - length_of(last);
  if (is_asked_for) {
    ages.asked[static_cast<size_t>(last)] += 1.0;
    ages.num_asked += 1.0;
  }
  if (ages.num_asked >= kMostAsked) {
    const auto halve = [](double& count) { count /= 2.0; };
    std::ranges::for_each(ages.asked, halve);
    std::ranges::for_each(ages.lived, halve);
    halve(ages.num_asked);
  }
  if (++num_unlearnt_ < kObservationsALesson) return;
  num_unlearnt_ = 0;
  std::ranges::for_each(classes_, learn);
}

double ReuseRates::rate(CheckpointKind kind, int64_t uses, int64_t age) const {
  return classes_[class_of(kind, uses)].rate[static_cast<size_t>(age_class(age))];
}

}  // namespace coluber
