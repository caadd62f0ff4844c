// SPDX-License-Identifier: Apache-2.0
//
// Recurrent states as whole numbers with a scale a row, between the steps of kernels that compute in float32: unpack
// expands the states of a step's rows into scratch, pack rounds them back. A state is [outer, channels, inner], a row
// its last axis:
//
//   scale[o, c] = max_n |s[o, c, n]| / L        code = round_to_even(s / scale), |code| <= L        (scaled_row.h)
//
// with L = 32767 (int16) or 127 (int8): the layout of block-scaled states of other engines, scales [outer, channels] in
// float32 beside the codes. With `lanes` the elements of an [outer] are ordered as StateLaneOrder's blocks of 16
// channels, in codes and values alike; scales never are. What a round trip loses is at most half a scale an element:
// max |s| of the row / 65534 or / 254.
//
// Numeric contract: every candidate gives the same bits. Neither operation allocates or owns anything.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/op.h"
#include "kernels/state_slots.h"

namespace coluber {

struct StateCodecArgs {
  StateSlots codes;        // kInt16 or kInt8
  void* scales = nullptr;  // float32 of slot 0; slots lie as the codes' do
  int64_t rows = 0;        // R
  int64_t outer = 1, channels = 0, inner = 0;
  bool lanes = false;
  float* values = nullptr;  // [R, outer * channels * inner], in the codes' order

  int64_t elements() const noexcept { return outer * channels * inner; }
};

using StateCodecFunction = void (*)(const StateCodecArgs& args, ThreadPool& pool);
// Row r of values from slot src[r]; zeros for a row without an initial state. Rows without a slot are left alone.
const Operation<StateCodecFunction>& unpack_states();
// Row r of values to slot dst[r].
const Operation<StateCodecFunction>& pack_states();

void unpack_states_ref(const StateCodecArgs& args, ThreadPool& pool);
void pack_states_ref(const StateCodecArgs& args, ThreadPool& pool);

}  // namespace coluber
