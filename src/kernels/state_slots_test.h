// SPDX-License-Identifier: Apache-2.0
//
// A pool of states for tests of the recurrent kernels: every slot is NaN until a test fills it, so a kernel that reads
// a slot which is not its row's shows in the outputs.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/state_slots.h"
#include "kernels/tolerance.h"

namespace coluber {

class StatePool {
 public:
  // The gap between slots is wider than a state, as in a page that other layers share.
  StatePool(int64_t slots, int64_t elements, DType dtype)
      : slots_(slots), elements_(elements), dtype_(dtype), stride_(elements * dtype_size(dtype) + 192) {
    bytes_.resize(static_cast<size_t>(slots * stride_));
    for (int64_t slot = 0; slot < slots; ++slot) {
      for (int64_t i = 0; i < elements; ++i) set(slot, i, std::numeric_limits<float>::quiet_NaN());
    }
  }

  void fill(int64_t slot, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (int64_t i = 0; i < elements_; ++i) set(slot, i, uniform(generator));
  }
  void set(int64_t slot, int64_t i, float value) { store_state_element(at(slot), dtype_, i, value); }
  float get(int64_t slot, int64_t i) const { return load_state_element(bytes_.data() + slot * stride_, dtype_, i); }
  std::vector<float> slot(int64_t slot) const {
    std::vector<float> values;
    for (int64_t i = 0; i < elements_; ++i) values.push_back(get(slot, i));
    return values;
  }
  std::vector<float> all() const {
    std::vector<float> values;
    for (int64_t s = 0; s < slots_; ++s) {
      for (float value : slot(s)) values.push_back(value);
    }
    return values;
  }
  StateSlots slots(const int32_t* src, const int32_t* dst, const uint8_t* has_initial_state) {
    return {bytes_.data(), dtype_, stride_, src, dst, 1, has_initial_state};
  }

 private:
  std::byte* at(int64_t slot) { return bytes_.data() + slot * stride_; }
  int64_t slots_, elements_;
  DType dtype_;
  int64_t stride_;
  std::vector<std::byte> bytes_;
};

// Rows that meet every rule of state_slots.h: in place, moved, fresh over NaN, null by 0 and by -1, empty, and each
// length.
struct SlotRows {
  std::vector<int32_t> query_start_loc{0};
  std::vector<int32_t> src, dst;
  std::vector<uint8_t> has_initial_state;
  int64_t slots = 1;
  std::vector<int64_t> filled;  // slots that hold a state

  void add(int64_t length, bool initial, bool move) {
    const int32_t from = static_cast<int32_t>(slots++);
    if (initial) filled.push_back(from);
    src.push_back(from);
    dst.push_back(move ? static_cast<int32_t>(slots++) : from);
    push(length, initial);
  }
  void add_null(int64_t length, int32_t slot) {
    src.push_back(slot);
    dst.push_back(slot);
    push(length, true);
  }
  int64_t rows() const { return static_cast<int64_t>(src.size()); }
  int64_t tokens() const { return query_start_loc.back(); }

  static SlotRows prefill() {
    SlotRows rows;
    rows.add(1, true, false);
    rows.add(150, true, true);
    rows.add_null(5, 0);
    rows.add(2, false, false);
    rows.add(0, true, true);
    rows.add(64, false, true);
    rows.add_null(70, -1);
    rows.add(9, true, false);
    rows.add(3, true, true);
    return rows;
  }
  static SlotRows decode() {
    SlotRows rows;
    rows.add(1, true, false);
    rows.add(1, true, true);
    rows.add_null(1, 0);
    rows.add(1, false, false);
    rows.add_null(1, -1);
    rows.add(1, true, false);
    return rows;
  }

 private:
  void push(int64_t length, bool initial) {
    has_initial_state.push_back(initial ? 1 : 0);
    query_start_loc.push_back(query_start_loc.back() + static_cast<int32_t>(length));
  }
};

// A row of a few tokens rounds a 16-bit state at each of them, where the reference rounds once.
inline Tolerance with_state_rounding(Tolerance tolerance, DType state) {
  if (state == DType::kBFloat16) tolerance.relative = 1.0 / 64, tolerance.of_rms = 1.0 / 64;
  if (state == DType::kFloat16) tolerance.relative = 1.0 / 512, tolerance.of_rms = 1.0 / 512;
  return tolerance;
}

// States that leave rows of 40 and 50 tokens from inside are those that shorter rows end with, and change nothing else:
// by `same(got, want, what)`, which compares floats. `run(query_start_loc, exports, y)` runs two rows, the first from a
// state, of inputs for 90 tokens, and gives the seven slots, in one pool or many: rows end in 1 and 2.
template <typename Run, typename Same>
void expect_exports_are_ends_of_shorter_rows(Run run, Same same) {
  const std::vector<int32_t> starts = {0, 1, 4}, offsets = {1, 5, 16, 33}, slots = {3, 4, 5, 6};
  std::vector<float> y, plain_y;
  const auto states = run({0, 40, 90}, StateExports{starts.data(), offsets.data(), slots.data()}, y);
  const auto plain = run({0, 40, 90}, StateExports{}, plain_y);
  same(y, plain_y, "outputs");
  same(states.slot(1), plain.slot(1), "the first row's state");
  same(states.slot(2), plain.slot(2), "the second row's state");
  same(states.slot(3), run({0, 1, 1}, StateExports{}, y).slot(1), "the first row's state after 1 token");
  for (size_t i = 1; i < offsets.size(); ++i)
    same(states.slot(slots[i]), run({0, 40, 40 + offsets[i]}, StateExports{}, y).slot(2),
         "the second row's state after " + std::to_string(offsets[i]) + " tokens");
}
// Bit for bit.
template <typename Run>
void expect_exports_are_ends_of_shorter_rows(Run run) {
  expect_exports_are_ends_of_shorter_rows(
      run, [](const auto& got, const auto& want, const std::string& what) { EXPECT_EQ(got, want) << what; });
}

}  // namespace coluber
