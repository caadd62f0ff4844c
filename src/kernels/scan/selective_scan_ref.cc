// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/selective_scan_ref.h"

#include <cmath>

namespace coluber::ref {
namespace {

// One channel of one row.
void scan(const SelectiveScanArgs& args, int64_t row, int64_t begin, int64_t end, int64_t channel) {
  double h[kMaxSelectiveScanState] = {};
  const auto place = [&](int64_t n) { return channel_block16_index(channel, n, args.channels, args.state_size); };
  const void* source = args.state.source(row);
  for (int64_t n = 0; n < args.state_size && source != nullptr; ++n) {
    h[n] = load_state_element(source, args.state.dtype, place(n));
  }
  for (const RowPart part : RowParts(args.state, args.exports, row, begin, end)) {
    for (int64_t t = part.begin; t < part.end; ++t) {
      const double x = args.x[t * args.x_stride + channel];
      double dt = args.delta[t * args.delta_stride + channel];
      if (args.delta_bias != nullptr) dt += args.delta_bias[channel];
      if (dt <= 20.0) dt = std::log1p(std::exp(dt));
      double y = args.d != nullptr ? args.d[channel] * x : 0.0;
      for (int64_t n = 0; n < args.state_size; ++n) {
        h[n] = args.state.kept(std::exp2(dt * args.a[place(n)]) * h[n] + dt * args.b[t * args.b_stride + n] * x);
        y += args.c[t * args.c_stride + n] * h[n];
      }
      if (args.z != nullptr) {
        const double z = args.z[t * args.z_stride + channel];
        y *= z / (1.0 + std::exp(-z));
      }
      args.y[t * args.y_stride + channel] = static_cast<float>(y);
    }
    for (int64_t n = 0; n < args.state_size; ++n)
      store_state_element(args.state.at(part.slot), args.state.dtype, place(n), static_cast<float>(h[n]));
  }
}

void scan_row(const SelectiveScanArgs& args, int64_t row, int64_t begin, int64_t end) {
  for (int64_t channel = 0; channel < args.channels; ++channel) {
    if (args.state.is_null(row)) {
      for (int64_t t = begin; t < end; ++t) args.y[t * args.y_stride + channel] = 0.0f;
    } else {
      scan(args, row, begin, end, channel);
    }
  }
}

}  // namespace

void selective_scan(const SelectiveScanArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    scan_row(args, row, args.query_start_loc[row], args.query_start_loc[row + 1]);
  }
}

void selective_state_update(const SelectiveScanArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) scan_row(args, row, row, row + 1);
}

}  // namespace coluber::ref
