// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/gated_linear_attention_ref.h"

#include <cmath>

namespace coluber::ref {
namespace {

// What a token leaves of row `key` of a head's state.
double decay_of(const GatedLinearAttentionArgs& args, int64_t token, int64_t head, int64_t key) {
  if (args.slopes != nullptr) return std::exp(-static_cast<double>(args.slopes[head]));
  const int64_t place = token * args.decay_stride;
  if (args.log_decay != nullptr) return std::exp(static_cast<double>(args.log_decay[place + head / args.group]));
  if (args.decay == nullptr) return 1.0;
  return args.decay[place + head / args.group * args.key_dim + key];
}

// Column `column` of one head, over tokens [begin, end).
void attend(const GatedLinearAttentionArgs& args, int64_t begin, int64_t end, int64_t head, int64_t column, double* s) {
  for (int64_t t = begin; t < end; ++t) {
    const float* q = args.q + t * args.q_stride + head * args.q_head_stride;
    const float* k = args.k + t * args.k_stride + head / args.group * args.k_head_stride;
    const double v = args.v[t * args.v_stride + head / args.group * args.v_head_stride + column];
    double o = 0.0;
    for (int64_t i = 0; i < args.key_dim; ++i) {
      s[i] = args.state.kept(decay_of(args, t, head, i) * s[i] + k[i] * v);
      o += q[i] * s[i];
    }
    args.o[t * args.o_stride + head * args.value_dim + column] = static_cast<float>(args.scale * o);
  }
}

void attend_column(const GatedLinearAttentionArgs& args, const RowParts& parts, const void* source, int64_t head,
                   int64_t column) {
  const auto place = [&](int64_t key) { return (head * args.key_dim + key) * args.value_dim + column; };
  double s[kMaxLinearKeyDim] = {};
  for (int64_t i = 0; i < args.key_dim && source != nullptr; ++i)
    s[i] = load_state_element(source, args.state.dtype, place(i));
  for (const RowPart part : parts) {
    attend(args, part.begin, part.end, head, column, s);
    for (int64_t i = 0; i < args.key_dim; ++i)
      store_state_element(args.state.at(part.slot), args.state.dtype, place(i), static_cast<float>(s[i]));
  }
}

void attend_row(const GatedLinearAttentionArgs& args, const StateExports& exports, int64_t row, int64_t begin,
                int64_t end) {
  const RowParts parts(args.state, exports, row, begin, end);
  for (int64_t head = 0; head < args.num_heads; ++head) {
    for (int64_t column = 0; column < args.value_dim; ++column) {
      if (args.state.is_null(row)) {
        for (int64_t t = begin; t < end; ++t) args.o[t * args.o_stride + head * args.value_dim + column] = 0.0f;
      } else {
        attend_column(args, parts, args.state.source(row), head, column);
      }
    }
  }
}

}  // namespace

void gated_linear_attention(const GatedLinearAttentionArgs& args, ThreadPool&, Workspace&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    attend_row(args, args.exports, row, args.query_start_loc[row], args.query_start_loc[row + 1]);
  }
}

void gated_linear_attention_update(const GatedLinearAttentionArgs& args, ThreadPool&, Workspace&) {
  for (int64_t row = 0; row < args.rows; ++row) attend_row(args, StateExports{}, row, row, row + 1);
}

void lightning_attention(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace) {
  gated_linear_attention(general_form(args), pool, workspace);
}

void lightning_attention_update(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace) {
  gated_linear_attention_update(general_form(args), pool, workspace);
}

}  // namespace coluber::ref
