// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/time_mix_ref.h"

#include <algorithm>
#include <cmath>

namespace coluber::ref {
namespace {

double mapped(WkvMap map, double x) {
  switch (map) {
    case WkvMap::kTanh:
      return std::tanh(x);
    case WkvMap::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case WkvMap::kExpNegExp:
      return std::exp(-std::exp(x));
    case WkvMap::kBoundedDecay:
      return std::exp(-std::exp(-0.5) / (1.0 + std::exp(-x)));
  }
  return 0.0;
}

double gated(HeadGate kind, double gate) {
  switch (kind) {
    case HeadGate::kNone:
      return 1.0;
    case HeadGate::kPlain:
      return gate;
    case HeadGate::kSilu:
      return gate / (1.0 + std::exp(-gate));
    case HeadGate::kSigmoid:
      return 1.0 / (1.0 + std::exp(-gate));
  }
  return 0.0;
}

void norm_one(const HeadNormArgs& args, int64_t token, int64_t head) {
  const int64_t n = args.head_dim, width = args.num_heads * n, channel = head * n, at = token * width + channel;
  double mean = 0.0, variance = 0.0, bonus = 0.0;
  for (int64_t i = 0; i < n; ++i) mean += args.x[at + i];
  mean /= static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) variance += (args.x[at + i] - mean) * (args.x[at + i] - mean);
  const double scale = 1.0 / std::sqrt(variance / static_cast<double>(n) + static_cast<double>(args.eps));
  for (int64_t i = 0; i < n && args.r != nullptr; ++i) {
    bonus += static_cast<double>(args.r[at + i]) * args.k[at + i] * args.r_k[channel + i];
  }
  for (int64_t i = 0; i < n; ++i) {
    double y = (args.x[at + i] - mean) * scale * args.weight[channel + i];
    if (args.bias != nullptr) y += args.bias[channel + i];
    if (args.r != nullptr) y += bonus * args.v[at + i];
    const double gate = args.gate_kind == HeadGate::kNone ? 0.0 : args.gate[token * args.gate_stride + channel + i];
    args.y[at + i] = static_cast<float>(y * gated(args.gate_kind, gate));
  }
}

void prepare_one(const Wkv7PrepareArgs& args, int64_t token, int64_t head) {
  const int64_t n = args.head_dim, channel = head * n, at = token * args.num_heads * n + channel;
  double square = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double scaled = static_cast<double>(args.k[at + i]) * args.k_k[channel + i];
    square += scaled * scaled;
  }
  const double inverse = 1.0 / std::sqrt(std::max(square, 1e-24) + static_cast<double>(args.eps));
  for (int64_t i = 0; i < n; ++i) {
    const double k = args.k[at + i], a = args.a[at + i];
    const double kk = k * args.k_k[channel + i] * inverse;
    args.kk[at + i] = static_cast<float>(-kk);
    args.a[at + i] = static_cast<float>(kk * a);
    args.k[at + i] = static_cast<float>(k * (1.0 + (a - 1.0) * args.k_a[channel + i]));
    if (args.v_gate != nullptr) {
      const double v = args.v[at + i];
      args.v[at + i] = static_cast<float>(v + (args.v_first[at + i] - v) * args.v_gate[at + i]);
    }
  }
}

}  // namespace

void token_shift(const TokenShiftArgs& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t begin = args.query_start_loc == nullptr ? row : args.query_start_loc[row];
    const int64_t end = args.query_start_loc == nullptr ? row + 1 : args.query_start_loc[row + 1];
    const bool null = args.state.is_null(row);
    for (int64_t c = 0; c < args.cols; ++c) {
      const void* source = null ? nullptr : args.state.source(row);
      float before = source == nullptr ? 0.0f : load_state_element(source, args.state.dtype, c);
      for (int64_t t = begin; t < end; ++t) {
        const float x = args.x[t * args.cols + c];
        args.delta[t * args.cols + c] = null ? 0.0f : before - x;
        before = x;
      }
      if (!null) store_state_element(args.state.target(row), args.state.dtype, c, before);
    }
  }
}

void token_mix(const TokenMixArgs& args, ThreadPool&) {
  for (int64_t i = 0; i < args.tokens * args.cols; ++i) {
    for (int64_t j = 0; j < args.mixes; ++j) {
      double mu = args.mu[j][i % args.cols];
      if (args.dynamic[j] != nullptr) mu += args.dynamic[j][i];
      args.out[j][i] = static_cast<float>(args.x[i] + args.delta[i] * mu);
    }
  }
}

void wkv_map(const WkvMapArgs& args, ThreadPool&) {
  for (int64_t i = 0; i < args.tokens * args.cols; ++i) {
    double x = args.x[i];
    if (args.bias != nullptr) x += args.bias[i % args.cols];
    args.y[i] = static_cast<float>(mapped(args.map, x));
  }
}

void head_norm(const HeadNormArgs& args, ThreadPool&) {
  for (int64_t token = 0; token < args.tokens; ++token) {
    for (int64_t head = 0; head < args.num_heads; ++head) norm_one(args, token, head);
  }
}

void wkv7_prepare(const Wkv7PrepareArgs& args, ThreadPool&) {
  for (int64_t token = 0; token < args.tokens; ++token) {
    for (int64_t head = 0; head < args.num_heads; ++head) prepare_one(args, token, head);
  }
}

}  // namespace coluber::ref
