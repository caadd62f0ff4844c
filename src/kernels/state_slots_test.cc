// SPDX-License-Identifier: Apache-2.0
#include "kernels/state_slots.h"

#include <gtest/gtest.h>

namespace coluber {
namespace {

// Addresses only: nothing is there.
TEST(StateSlots, FarSlotsAreFound) {
  const int32_t slots[] = {3, 70000, 2147483647};
  StateSlots states;
  states.base = reinterpret_cast<void*>(uintptr_t{4096});
  states.slot_stride_bytes = (int64_t{1} << 31) + 128;
  states.src = states.dst = slots;
  for (int64_t row = 0; row < 3; ++row) {
    const uintptr_t expected = 4096 + static_cast<uintptr_t>(slots[row]) * ((uintptr_t{1} << 31) + 128);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(states.source(row)), expected) << row;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(states.target(row)), expected) << row;
  }
}

TEST(StateSlots, ARowWithoutAStateReadsNoSlot) {
  const int32_t slots[] = {5, 0, 6};
  const uint8_t has_state[] = {0, 1, 1};
  StateSlots states;
  states.base = reinterpret_cast<void*>(uintptr_t{4096});
  states.slot_stride_bytes = 64;
  states.src = states.dst = slots;
  states.has_initial_state = has_state;
  EXPECT_EQ(states.source(0), nullptr);
  EXPECT_FALSE(states.is_null(0));
  EXPECT_TRUE(states.is_null(1)) << "the null slot is nobody's";
  EXPECT_NE(states.source(2), nullptr);
}

}  // namespace
}  // namespace coluber
