// SPDX-License-Identifier: Apache-2.0
#include "kernels/state/state_codec.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/op_test.h"
#include "kernels/state/scaled_row.h"
#include "kernels/state_slots_test.h"

namespace coluber {
namespace {

struct Case {
  int64_t outer, channels, inner;
  bool lanes;
};
constexpr Case kCases[] = {{1, 1, 1, false},  {3, 5, 7, false},   {2, 64, 128, false}, {1, 16, 16, true},
                           {1, 40, 16, true}, {4, 33, 128, true}, {1, 7, 3, true},     {2, 300, 64, true}};

// Slots of codes, then scales, and values of four rows: one fresh, one that moves, one in place, one without a slot.
class States {
 public:
  States(const Case& c, DType dtype) : case_(c), dtype_(dtype) {
    codes_bytes_ = (elements() * dtype_size(dtype) + 127) / 128 * 128;
    stride_ = codes_bytes_ + c.outer * c.channels * 4;
    stride_ = (stride_ + 127) / 128 * 128;
    memory.assign(static_cast<size_t>(stride_ * 8), std::byte{0x7f});
    values = random_floats(elements() * 4, -3, 3, 5);
  }
  int64_t elements() const { return case_.outer * case_.channels * case_.inner; }
  StateCodecArgs args() {
    StateCodecArgs args;
    args.codes = {memory.data(), dtype_, stride_, src_, dst_, 1, has_};
    args.scales = memory.data() + codes_bytes_;
    args.rows = 4;
    args.outer = case_.outer;
    args.channels = case_.channels;
    args.inner = case_.inner;
    args.lanes = case_.lanes;
    args.values = values.data();
    return args;
  }
  std::span<float> row(int64_t r) {
    return std::span(values).subspan(static_cast<size_t>(r * elements()), static_cast<size_t>(elements()));
  }
  float* scales(int64_t slot) { return reinterpret_cast<float*>(memory.data() + slot * stride_ + codes_bytes_); }

  std::vector<std::byte> memory;
  std::vector<float> values;

 private:
  Case case_;
  DType dtype_;
  int64_t codes_bytes_ = 0, stride_ = 0;
  const int32_t src_[4] = {0, 2, 5, -1}, dst_[4] = {1, 3, 5, 0};
  const uint8_t has_[4] = {0, 1, 1, 1};
};

TEST(StateCodec, CandidatesGiveTheSameBits) {
  ThreadPool pool(3);
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::kInt16, DType::kInt8}) {
      SCOPED_TRACE(std::to_string(c.channels) + "x" + std::to_string(c.inner) + " " + std::string(dtype_name(dtype)));
      States want(c, dtype);
      want.row(1)[0] = 0.0f;
      if (c.outer * c.channels > 2) want.values.back() = NAN;
      want.row(2)[static_cast<size_t>(want.elements() - 1)] = INFINITY;
      States start = want;
      StateCodecArgs args = want.args();
      pack_states_ref(args, pool);
      args.codes.src = args.codes.dst;
      unpack_states_ref(args, pool);
      for (size_t i = 0; i < pack_states().candidates().size(); ++i) {
        const auto &pack = pack_states().candidates()[i], &unpack = unpack_states().candidates()[i];
        if (pack.isa > active_isa()) continue;
        States got = start;
        StateCodecArgs run = got.args();
        pack.function(run, pool);
        EXPECT_EQ(got.memory, want.memory) << pack.name;
        run.codes.src = run.codes.dst;
        unpack.function(run, pool);
        EXPECT_EQ(0, std::memcmp(got.values.data(), want.values.data(), got.values.size() * sizeof(float)))
            << unpack.name;
      }
    }
  }
}

TEST(StateCodec, ARoundTripLosesAtMostHalfAScale) {
  ThreadPool pool(2);
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::kInt16, DType::kInt8}) {
      States states(c, dtype);
      const std::vector<float> before = states.values;
      StateCodecArgs args = states.args();
      pack_states()(args, pool);
      static constexpr uint8_t kAll[4] = {1, 1, 1, 1};
      args.codes.src = args.codes.dst;
      args.codes.has_initial_state = kAll;
      unpack_states()(args, pool);
      const float bound = 3.0f / largest_code(dtype) * 0.5001f;
      for (size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(states.values[i], before[i], bound);
    }
  }
}

TEST(StateCodec, RowsThatAreNotFiniteGetScalesThatAreNot) {
  ThreadPool pool(2);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const bool lanes : {false, true}) {
      States states({1, 20, 8, lanes}, DType::kInt8);
      states.row(1)[3] = bad;
      StateCodecArgs args = states.args();
      pack_states()(args, pool);
      const float* scales = states.scales(3);
      int64_t found = 0;
      for (int64_t i = 0; i < 20; ++i) found += !std::isfinite(scales[i]);
      EXPECT_EQ(found, 1);
    }
  }
}

TEST(StateCodec, FreshRowsAreZerosAndRowsWithoutASlotAreLeftAlone) {
  ThreadPool pool(2);
  States states({2, 20, 8, true}, DType::kInt16);
  const std::vector<float> last(states.row(3).begin(), states.row(3).end());
  unpack_states()(states.args(), pool);
  for (const float value : states.row(0)) EXPECT_EQ(value, 0.0f);
  EXPECT_EQ(0, std::memcmp(last.data(), states.row(3).data(), last.size() * sizeof(float)));
  const std::vector<std::byte> before = states.memory;
  StateCodecArgs args = states.args();
  args.values = states.row(3).data();
  args.rows = 1;
  static constexpr int32_t kNone[1] = {0};
  args.codes.dst = kNone;
  pack_states()(args, pool);
  EXPECT_EQ(states.memory, before);
}

TEST(StateCodec, RunsVectorised) {
  expect_vectorised(pack_states());
  expect_vectorised(unpack_states());
}

}  // namespace
}  // namespace coluber
