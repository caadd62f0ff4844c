// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/conv_windows.h"

#include <gtest/gtest.h>

#include <vector>

namespace coluber {
namespace {

// Two rows of 3 and 2 tokens, 2 channels, windows of 2 inputs; states of slots 1 and 2, exports to 3 and 4.
TEST(ConvWindows, HoldTheInputsBeforeTheirPlacesAndWhatTheRowBeganWith) {
  ThreadPool pool(1);
  const std::vector<float> x{1, 10, 2, 20, 3, 30, 4, 40, 5, 50}, factor{2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
  std::vector<float> states(6 * 4, -1.0f);
  states[1 * 4 + 2] = 7, states[1 * 4 + 3] = 70;  // the newest input before row 0
  const std::vector<int32_t> slots{1, 2}, starts{0, 3, 5}, first_export{0, 2, 3}, offsets{1, 2, 1}, to{3, 4, 5};
  const std::vector<uint8_t> has_initial{1, 0};
  ConvWindowsArgs args;
  args.x = x.data();
  args.x_stride = 2;
  args.state = {states.data(), DType::kFloat32, 16, slots.data(), slots.data(), 1, has_initial.data()};
  args.query_start_loc = starts.data();
  args.rows = 2;
  args.channels = 2;
  args.taps = 2;
  args.exports = {first_export.data(), offsets.data(), to.data()};
  conv_windows()(args, pool);
  const auto window = [&](int slot) {
    return std::vector<float>(states.begin() + slot * 4, states.begin() + slot * 4 + 4);
  };
  EXPECT_EQ(window(3), (std::vector<float>{7, 70, 1, 10}));
  EXPECT_EQ(window(4), (std::vector<float>{1, 10, 2, 20}));
  EXPECT_EQ(window(5), (std::vector<float>{0, 0, 4, 40})) << "a fresh row begins with zeros";
  args.factor = factor.data();
  conv_windows()(args, pool);
  EXPECT_EQ(window(4), (std::vector<float>{2, 20, 4, 40}));
}

}  // namespace
}  // namespace coluber
