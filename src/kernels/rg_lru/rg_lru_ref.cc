// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/rg_lru/rg_lru.h"

namespace coluber {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

void run_channel(const RgLruArgs& args, int64_t row, int64_t begin, int64_t end, int64_t c) {
  const void* source = args.state.source(row);
  double h = source == nullptr ? 0.0 : static_cast<double>(load_state_element(source, args.state.dtype, c));
  for (const RowPart part : RowParts(args.state, args.exports, row, begin, end)) {
    for (int64_t t = part.begin; t < part.end; ++t) {
      const double log_a = args.log_decay[c] * sigmoid(args.recurrent_gate[t * args.gate_stride + c]);
      const double u = sigmoid(args.input_gate[t * args.gate_stride + c]) * args.x[t * args.x_stride + c];
      const bool first = source == nullptr && t == begin;
      h = args.state.kept(first ? u : std::exp(log_a) * h + std::sqrt(-std::expm1(2.0 * log_a)) * u);
      args.y[t * args.y_stride + c] = static_cast<float>(h);
    }
    store_state_element(args.state.at(part.slot), args.state.dtype, c, static_cast<float>(h));
  }
}

void run_row(const RgLruArgs& args, int64_t row, int64_t begin, int64_t end) {
  for (int64_t c = 0; c < args.channels; ++c) {
    if (!args.state.is_null(row)) {
      if (begin < end) run_channel(args, row, begin, end, c);
      continue;
    }
    for (int64_t t = begin; t < end; ++t) args.y[t * args.y_stride + c] = 0.0f;
  }
}

}  // namespace

void rg_lru_ref(const RgLruArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row)
    run_row(args, row, args.query_start_loc[row], args.query_start_loc[row + 1]);
}

void rg_lru_update_ref(const RgLruArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) run_row(args, row, row, row + 1);
}

}  // namespace coluber
