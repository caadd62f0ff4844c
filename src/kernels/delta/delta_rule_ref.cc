// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "kernels/delta/delta_rule.h"

namespace coluber {
namespace {

using Values = std::vector<double>;

double log_decay(const DeltaRuleArgs& args, int64_t token, int64_t head, int64_t key) {
  if (args.gate == nullptr) return 0;
  const int64_t channel = args.gate_per_channel ? head * args.key_dim + key : head;
  const double x = static_cast<double>(args.gate[token * args.gate_stride + channel]) +
                   (args.gate_bias == nullptr ? 0.0 : args.gate_bias[channel]);
  const double rate = args.gate_rate[head];
  if (args.gate_lower_bound != 0) return args.gate_lower_bound / (1.0 + std::exp(-rate * x));
  return -rate * (x > 20.0 ? x : std::log1p(std::exp(x)));
}

Values normed(const DeltaRuleArgs& args, const float* x, double scale) {
  double sum = args.norm_eps;
  for (int64_t i = 0; i < args.key_dim; ++i) sum += static_cast<double>(x[i]) * x[i];
  Values out;
  for (int64_t i = 0; i < args.key_dim; ++i) out.push_back(x[i] * scale / (args.norm_eps > 0 ? std::sqrt(sum) : 1.0));
  return out;
}

// One token of one head; s [Dv, Dk].
void step(const DeltaRuleArgs& args, int64_t token, int64_t head, Values& s) {
  const int64_t dk = args.key_dim, dv = args.value_dim, key_head = head / (args.num_v_heads / args.num_k_heads);
  const Values q = normed(args, args.q + token * args.q_stride + key_head * dk, args.scale);
  const Values k = normed(args, args.k + token * args.k_stride + key_head * dk, 1.0);
  const float* v = args.v + token * args.v_stride + head * dv;
  float* y = args.y + token * args.y_stride + head * dv;
  double beta = args.beta_scale;
  if (args.beta != nullptr) beta /= 1.0 + std::exp(-static_cast<double>(args.beta[token * args.beta_stride + head]));
  Values decay;
  for (int64_t i = 0; i < dk; ++i) decay.push_back(std::exp(log_decay(args, token, head, i)));
  for (int64_t r = 0; r < dv; ++r) {
    double* row = s.data() + r * dk;
    double read = 0, out = 0;
    for (int64_t i = 0; i < dk; ++i) {
      row[i] *= decay[static_cast<size_t>(i)];
      read += row[i] * k[static_cast<size_t>(i)];
    }
    const double u = beta * (v[r] - read);
    for (int64_t i = 0; i < dk; ++i) {
      row[i] = args.state.kept(row[i] + u * k[static_cast<size_t>(i)]);
      out += row[i] * q[static_cast<size_t>(i)];
    }
    y[r] = static_cast<float>(out);
  }
}

void run_head(const DeltaRuleArgs& args, int64_t row, int64_t head, int64_t begin, int64_t end) {
  const int64_t dk = args.key_dim, dv = args.value_dim;
  const void* source = args.state.source(row);
  Values s(static_cast<size_t>(dv * dk));
  for (int64_t r = 0; r < dv && source != nullptr; ++r) {
    for (int64_t i = 0; i < dk; ++i) {
      s[static_cast<size_t>(r * dk + i)] =
          load_state_element(source, args.state.dtype, head * dv * dk + delta_state_index(r, i, dv, dk));
    }
  }
  for (const RowPart part : RowParts(args.state, args.exports, row, begin, end)) {
    for (int64_t t = part.begin; t < part.end; ++t) step(args, t, head, s);
    for (int64_t r = 0; r < dv; ++r) {
      for (int64_t i = 0; i < dk; ++i) {
        store_state_element(args.state.at(part.slot), args.state.dtype,
                            head * dv * dk + delta_state_index(r, i, dv, dk),
                            static_cast<float>(s[static_cast<size_t>(r * dk + i)]));
      }
    }
  }
}

}  // namespace

void delta_rule_ref(const DeltaRuleArgs& args, ThreadPool&, Workspace&) {
  const int64_t width = args.num_v_heads * args.value_dim;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t begin = args.query_start_loc == nullptr ? row : args.query_start_loc[row];
    const int64_t end = args.query_start_loc == nullptr ? row + 1 : args.query_start_loc[row + 1];
    if (args.state.is_null(row)) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < width; ++i) args.y[t * args.y_stride + i] = 0.0f;
      }
      continue;
    }
    for (int64_t h = 0; h < args.num_v_heads; ++h) run_head(args, row, h, begin, end);
  }
}

}  // namespace coluber
