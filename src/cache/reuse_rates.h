// SPDX-License-Identifier: Apache-2.0
//
// How soon a kept state is asked for, learnt from those that were kept before: of its kind, asked for as often, and as
// old. The end of a turn is asked for once, and soon; the place where prompts part again and again; most others never:
// which is which depends on the traffic, and is found out here. Ages are counted in look-ups, so that idle hours do not
// make anything old. Allocates nothing. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace coluber {

// Why a state was kept.
enum class CheckpointKind : int8_t {
  kTurnEnd,    // its sequence ended here
  kParting,    // two prompts parted here
  kPromptEnd,  // the last of a prompt
  kAlong,      // any other
};

class ReuseRates {
 public:
  ReuseRates();
  // A state that was asked for `uses` times before was asked for after so many look-ups more, or dropped.
  void observe(CheckpointKind kind, int64_t uses, int64_t age, bool is_asked_for);
  // The most times a look-up at which one of that age will be asked for, over as long a time as makes the most of it:
  // one that is rarely asked for at once, but soon, counts as what is asked for soon.
  double rate(CheckpointKind kind, int64_t uses, int64_t age) const;

 private:
  static constexpr int kKinds = 4;
  static constexpr int kUses = 3;   // never, once, more often
  static constexpr int kAges = 24;  // each twice the one before

  struct Ages {
    std::array<double, kAges> asked{};
    std::array<double, kAges> lived{};  // look-ups that states of the age lived through
    std::array<double, kAges> rate{};
    double num_asked = 0.0;
  };

  static int age_class(int64_t age) noexcept;
  static size_t class_of(CheckpointKind kind, int64_t uses) noexcept;
  static void learn(Ages& ages);

  std::array<Ages, size_t{kKinds} * kUses> classes_;
  int64_t num_unlearnt_ = 0;
};

}  // namespace coluber
