// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/short_conv_ref.h"

namespace coluber::ref {
namespace {

// One channel of one row.
void convolve(const ShortConvArgs& args, int64_t row, int64_t begin, int64_t end, int64_t c) {
  const int64_t kept = args.width - 1;
  double window[kMaxConvWidth] = {};
  const void* source = args.state.source(row);
  for (int64_t s = 0; s < kept && source != nullptr; ++s) {
    window[s] = load_state_element(source, args.state.dtype, s * args.channels + c);
  }
  for (int64_t t = begin; t < end; ++t) {
    const int64_t place = t * args.in_stride + c;
    window[kept] = args.b[place] * args.x[place];  // float32, as a later call finds it
    double sum = args.bias != nullptr ? args.bias[c] : 0.0;
    for (int64_t j = 0; j < args.width; ++j) sum += args.weight[j * args.channels + c] * window[j];
    args.y[t * args.y_stride + c] = static_cast<float>(args.c_gate[place] * sum);
    for (int64_t s = 0; s < kept; ++s) window[s] = window[s + 1];
  }
  void* target = args.state.target(row);
  for (int64_t s = 0; s < kept; ++s) {
    store_state_element(target, args.state.dtype, s * args.channels + c, static_cast<float>(window[s]));
  }
}

void convolve_row(const ShortConvArgs& args, int64_t row, int64_t begin, int64_t end) {
  for (int64_t c = 0; c < args.channels; ++c) {
    if (args.state.is_null(row)) {
      for (int64_t t = begin; t < end; ++t) args.y[t * args.y_stride + c] = 0.0f;
    } else {
      convolve(args, row, begin, end, c);
    }
  }
}

}  // namespace

void short_conv(const ShortConvArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    convolve_row(args, row, args.query_start_loc[row], args.query_start_loc[row + 1]);
  }
}

void short_conv_update(const ShortConvArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) convolve_row(args, row, row, row + 1);
}

}  // namespace coluber::ref
