// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd_ref.h"

#include <algorithm>
#include <cmath>

namespace coluber::ref {
namespace {

double step_size(const SsdArgs& args, int64_t t, int64_t head) {
  double dt = args.dt[t * args.dt_stride + head];
  if (args.dt_bias != nullptr) dt += args.dt_bias[head];
  if (dt <= 20.0) dt = std::log1p(std::exp(dt));
  return std::min<double>(std::max<double>(dt, args.dt_min), args.dt_max);
}

// Row p of one head's state.
void scan(const SsdArgs& args, int64_t row, int64_t begin, int64_t end, int64_t head, int64_t p) {
  const int64_t group = head / (args.num_heads / args.num_groups);
  const int64_t place = (head * args.head_dim + p) * args.state_size;
  double s[kMaxSsdState] = {};
  const void* source = args.state.source(row);
  for (int64_t n = 0; n < args.state_size && source != nullptr; ++n) {
    s[n] = load_state_element(source, args.state.dtype, place + n);
  }
  for (const RowPart part : RowParts(args.state, args.exports, row, begin, end)) {
    for (int64_t t = part.begin; t < part.end; ++t) {
      const double dt = step_size(args, t, head);
      const double decay = std::exp(dt * args.a[head]);
      const double x = args.x[t * args.x_stride + head * args.head_dim + p];
      const float* b = args.b + t * args.b_stride + group * args.state_size;
      const float* c = args.c + t * args.c_stride + group * args.state_size;
      double y = args.d != nullptr ? args.d[head] * x : 0.0;
      for (int64_t n = 0; n < args.state_size; ++n) {
        s[n] = args.state.kept(decay * s[n] + dt * x * b[n]);
        y += s[n] * c[n];
      }
      args.y[t * args.y_stride + head * args.head_dim + p] = static_cast<float>(y);
    }
    for (int64_t n = 0; n < args.state_size; ++n)
      store_state_element(args.state.at(part.slot), args.state.dtype, place + n, static_cast<float>(s[n]));
  }
}

void scan_row(const SsdArgs& args, int64_t row, int64_t begin, int64_t end) {
  for (int64_t head = 0; head < args.num_heads; ++head) {
    for (int64_t p = 0; p < args.head_dim; ++p) {
      if (args.state.is_null(row)) {
        for (int64_t t = begin; t < end; ++t) args.y[t * args.y_stride + head * args.head_dim + p] = 0.0f;
      } else {
        scan(args, row, begin, end, head, p);
      }
    }
  }
}

}  // namespace

void ssd_chunk_scan(const SsdArgs& args, ThreadPool&, Workspace&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    scan_row(args, row, args.query_start_loc[row], args.query_start_loc[row + 1]);
  }
}

void ssd_state_update(const SsdArgs& args, ThreadPool&, Workspace&) {
  for (int64_t row = 0; row < args.rows; ++row) scan_row(args, row, row, row + 1);
}

}  // namespace coluber::ref
