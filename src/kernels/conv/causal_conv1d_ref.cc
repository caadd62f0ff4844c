// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "kernels/conv/causal_conv1d_ref.h"

namespace coluber::ref {
namespace {

// One channel of one row.
void convolve(const CausalConv1dArgs& args, int64_t row, int64_t begin, int64_t count, int64_t c) {
  const int64_t kept = args.width - 1;
  double window[kMaxConvWidth] = {};
  const void* source = args.state.source(row);
  for (int64_t s = 0; s < kept && source != nullptr; ++s) {
    window[s] = load_state_element(source, args.state.dtype, s * args.channels + c);
  }
  for (int64_t t = begin; t < begin + count; ++t) {
    window[kept] = args.x[t * args.x_stride + c];
    double sum = args.bias != nullptr ? args.bias[c] : 0.0;
    for (int64_t j = 0; j < args.width; ++j) sum += args.weight[j * args.channels + c] * window[j];
    args.y[t * args.y_stride + c] = static_cast<float>(args.silu ? sum / (1.0 + std::exp(-sum)) : sum);
    for (int64_t s = 0; s < kept; ++s) window[s] = window[s + 1];
  }
  void* target = args.state.target(row);
  for (int64_t s = 0; s < kept; ++s) {
    store_state_element(target, args.state.dtype, s * args.channels + c, static_cast<float>(window[s]));
  }
}

void convolve_row(const CausalConv1dArgs& args, int64_t row, int64_t begin, int64_t count) {
  for (int64_t c = 0; c < args.channels; ++c) {
    if (args.state.is_null(row)) {
      for (int64_t t = begin; t < begin + count; ++t) args.y[t * args.y_stride + c] = 0.0f;
    } else {
      convolve(args, row, begin, count, c);
    }
  }
}

}  // namespace

void causal_conv1d(const CausalConv1dArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    convolve_row(args, row, args.query_start_loc[row], args.query_start_loc[row + 1] - args.query_start_loc[row]);
  }
}

void causal_conv1d_update(const CausalConv1dArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) convolve_row(args, row, row, 1);
}

}  // namespace coluber::ref
