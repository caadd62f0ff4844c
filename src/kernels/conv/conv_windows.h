// SPDX-License-Identifier: Apache-2.0
//
// The windows of a causal convolution inside its rows: at each place of `exports`, the W-1 inputs before it, in the
// slot that the place names; inputs before the row's first token come from the row's own window. To be run before the
// convolution, which overwrites the windows that the rows begin with. Elements are stored as states are; exact.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"

namespace coluber {

struct ConvWindowsArgs {
  const float* x = nullptr;                  // [T, C]
  const float* factor = nullptr;             // [T, C] that multiplies x, or null
  int64_t x_stride = 0;                      // elements between tokens, of x and factor
  StateSlots state;                          // (W-1, C), C contiguous
  const int32_t* query_start_loc = nullptr;  // [R+1]
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t taps = 0;      // W-1
  StateExports exports;  // not empty
};

using ConvWindowsFunction = void (*)(const ConvWindowsArgs& args, ThreadPool& pool);
const Operation<ConvWindowsFunction>& conv_windows();

}  // namespace coluber
