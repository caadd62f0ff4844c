// SPDX-License-Identifier: Apache-2.0
//
// How far a candidate's results may lie from its reference's: a constant of each operation's contract header, read by
// the test harness alone.
#pragma once

namespace coluber {

// |got - want| <= absolute + relative * |want| + of_rms * (root mean square of the tensor)
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  double of_rms = 0;
};

}  // namespace coluber
