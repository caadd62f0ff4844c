// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/conv_windows.h"

#include "base/error.h"
#include "kernels/op_registry.h"

namespace coluber {
namespace {

void write_window(const ConvWindowsArgs& args, int64_t row, int64_t place) {
  const StateSlots& slots = args.state;
  const float* x = args.x + args.query_start_loc[row] * args.x_stride;
  const float* factor = args.factor != nullptr ? args.factor + args.query_start_loc[row] * args.x_stride : nullptr;
  const void* before = slots.source(row);
  void* out = slots.at(args.exports.slots[place]);
  for (int64_t j = 0; j < args.taps; ++j) {
    const int64_t token = args.exports.offsets[place] - args.taps + j;  // below 0: what the row began with
    for (int64_t c = 0; c < args.channels; ++c) {
      float value = 0.0f;
      if (token >= 0) {
        value = x[token * args.x_stride + c];
        if (factor != nullptr) value = factor[token * args.x_stride + c] * value;
      } else if (before != nullptr) {
        value = load_state_element(before, slots.dtype, (args.taps + token) * args.channels + c);
      }
      store_state_element(out, slots.dtype, j * args.channels + c, value);
    }
  }
}

void write_windows(const ConvWindowsArgs& args, ThreadPool&) {
  COLUBER_CHECK(args.exports.starts != nullptr, "windows of {} rows without places", args.rows);
  for (int64_t row = 0; row < args.rows; ++row)
    for (int64_t i = args.exports.first(row); i < args.exports.last(row); ++i) write_window(args, row, i);
}

}  // namespace

const Operation<ConvWindowsFunction>& conv_windows() {
  static const Operation<ConvWindowsFunction> operation("conv_windows", {{"loop", Isa::kRef, write_windows}});
  return operation;
}

namespace {
const RegisterOperations kEntered(conv_windows);
}

}  // namespace coluber
