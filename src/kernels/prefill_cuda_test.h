// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the CUDA kernels of prefill share: packed rows of every awkward length, states left on the way, and
// errors as a share of the reference's norm, which is how chunks of rounded operands are bounded.
#pragma once

#include "kernels/cuda_test.h"

namespace coluber {

// Rows around a chunk's length, in place, moved and fresh, rows without a slot and without tokens among them.
inline SlotRows prefill_rows(int64_t chunk) {
  SlotRows rows;
  rows.add(1, true, false);
  rows.add(chunk + 1, true, true);
  rows.add_null(5, 0);
  rows.add(2, false, false);
  rows.add(0, true, true);
  rows.add(chunk - 1, false, true);
  rows.add_null(chunk + 2, -1);
  rows.add(16, true, false);
  rows.add(chunk, true, true);
  rows.add(3 * 64 + 1, false, false);
  rows.add(0, false, true);
  rows.add(17, true, true);
  rows.add(1027, true, false);
  return rows;
}

// Exports of `rows`: two states on the way of every row that is long enough and has a slot, in slots of their own.
struct LeftStates {
  std::vector<int32_t> starts{0}, offsets, slots;

  explicit LeftStates(SlotRows& rows, int64_t chunk) {
    for (int64_t r = 0; r < rows.rows(); ++r) {
      const auto length = static_cast<int32_t>(rows.query_start_loc[static_cast<size_t>(r) + 1] -
                                               rows.query_start_loc[static_cast<size_t>(r)]);
      if (length > chunk && rows.dst[static_cast<size_t>(r)] > 0)
        for (int32_t offset : {length / 3, length - 1}) {
          offsets.push_back(offset);
          slots.push_back(static_cast<int32_t>(rows.slots++));
        }
      starts.push_back(static_cast<int32_t>(offsets.size()));
    }
  }
  StateExports host() const { return {starts.data(), offsets.data(), slots.data()}; }
  StateExports on_device(Uploads& uploads) const {
    return {uploads.add(starts), uploads.add(offsets), uploads.add(slots)};
  }
};

// Norm of the difference over that of `want`, elements that are NaN in both left out; infinite where NaN or a zero
// reference meets something else.
inline double relative_error(const float* got, const float* want, size_t count) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    const double d = static_cast<double>(got[i]) - want[i];
    if (std::isnan(d)) return std::numeric_limits<double>::infinity();
    difference += d * d;
    norm += static_cast<double>(want[i]) * want[i];
  }
  if (difference == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

// The whole within `bound`, each of its parts [starts[i], starts[i + 1]) times `width` within twice of it: a short one
// averages over few roundings.
inline void expect_small_error(const std::vector<float>& got, const std::vector<float>& want,
                               const std::vector<int32_t>& starts, int64_t width, double bound, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  const double whole = relative_error(got.data(), want.data(), got.size());
  EXPECT_LE(whole, bound) << what;
  double worst = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const auto first = static_cast<size_t>(starts[i] * width), last = static_cast<size_t>(starts[i + 1] * width);
    const double part = relative_error(got.data() + first, want.data() + first, last - first);
    EXPECT_LE(part, 2 * bound) << what << ", part " << i;
    worst = std::max(worst, part);
  }
  std::printf("[ ERROR    ] %s: %.2e of a bound of %.1e, the worst part %.2e\n", what, whole, bound, worst);
}
inline std::vector<int32_t> slot_starts(int64_t slots) {
  std::vector<int32_t> starts;
  for (int64_t slot = 0; slot <= slots; ++slot) starts.push_back(static_cast<int32_t>(slot));
  return starts;
}

// By how much more a state of 16 bits may differ, stored once a row.
inline double with_stored_state(double bound, DType state) {
  return bound + (state == DType::kBFloat16 ? 1.0 / 256 : state == DType::kFloat16 ? 1.0 / 2048 : 0.0);
}

// Row `row` of `rows` alone.
inline SlotRows alone(const SlotRows& rows, int64_t row) {
  const auto r = static_cast<size_t>(row);
  SlotRows one;
  one.query_start_loc = {0, rows.query_start_loc[r + 1] - rows.query_start_loc[r]};
  one.src = {rows.src[r]};
  one.dst = {rows.dst[r]};
  one.has_initial_state = {rows.has_initial_state[r]};
  one.slots = rows.slots;
  return one;
}

// What `run(rows, first_token, held)` gives of all rows at once is what it gives of each alone, bit for bit.
template <typename Run>
void expect_packed_is_alone(const SlotRows& rows, const DeviceStates& held, Run&& run) {
  DeviceStates packed_states = held, alone_states = held;
  const std::vector<float> packed = run(rows, 0, packed_states);
  std::vector<float> one_by_one;
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const std::vector<float> y = run(alone(rows, row), rows.query_start_loc[static_cast<size_t>(row)], alone_states);
    one_by_one.insert(one_by_one.end(), y.begin(), y.end());
  }
  expect_same_bits(packed, one_by_one);
  EXPECT_TRUE(packed_states.bytes == alone_states.bytes) << "states of packed rows and of rows alone";
}

}  // namespace coluber
