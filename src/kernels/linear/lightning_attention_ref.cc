// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/lightning_attention_ref.h"

#include <cmath>

namespace coluber::ref {
namespace {

// Column `v` of one head's state.
void attend(const LightningAttentionArgs& args, int64_t row, int64_t begin, int64_t end, int64_t head, int64_t v) {
  const int64_t dim = args.head_dim;
  const auto place = [&](int64_t k) { return (head * dim + k) * dim + v; };
  const double decay = std::exp(-static_cast<double>(args.slopes[head]));
  double s[kMaxLightningHeadDim] = {};
  const void* source = args.state.source(row);
  for (int64_t k = 0; k < dim && source != nullptr; ++k) s[k] = load_state_element(source, args.state.dtype, place(k));
  for (int64_t t = begin; t < end; ++t) {
    const int64_t token = t * args.token_stride + head * args.head_stride;
    double o = 0.0;
    for (int64_t k = 0; k < dim; ++k) {
      s[k] = decay * s[k] + static_cast<double>(args.k[token + k]) * args.v[token + v];
      o += args.q[token + k] * s[k];
    }
    args.o[t * args.o_stride + head * dim + v] = static_cast<float>(o);
  }
  void* target = args.state.target(row);
  for (int64_t k = 0; k < dim; ++k) store_state_element(target, args.state.dtype, place(k), static_cast<float>(s[k]));
}

void attend_row(const LightningAttentionArgs& args, int64_t row, int64_t begin, int64_t end) {
  for (int64_t head = 0; head < args.num_heads; ++head) {
    for (int64_t v = 0; v < args.head_dim; ++v) {
      if (args.state.is_null(row)) {
        for (int64_t t = begin; t < end; ++t) args.o[t * args.o_stride + head * args.head_dim + v] = 0.0f;
      } else {
        attend(args, row, begin, end, head, v);
      }
    }
  }
}

}  // namespace

void lightning_attention(const LightningAttentionArgs& args, ThreadPool&, Workspace&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    attend_row(args, row, args.query_start_loc[row], args.query_start_loc[row + 1]);
  }
}

void lightning_attention_update(const LightningAttentionArgs& args, ThreadPool&, Workspace&) {
  for (int64_t row = 0; row < args.rows; ++row) attend_row(args, row, row, row + 1);
}

}  // namespace coluber::ref
