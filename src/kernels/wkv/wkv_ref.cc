// SPDX-License-Identifier: Apache-2.0
#include "kernels/wkv/wkv_ref.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace coluber::ref {
namespace {

template <typename Args>
int64_t first_token(const Args& args, int64_t row) {
  return args.query_start_loc == nullptr ? row : args.query_start_loc[row];
}

void wkv4_channel(const Wkv4Args& args, int64_t row, int64_t c) {
  const DType dtype = DType::kFloat32;
  double num = 0.0, den = 0.0, largest = kWkv4NoMaximum;
  if (!args.numerator.is_fresh(row)) {
    num = load_state_element(args.numerator.source(row), dtype, c);
    den = load_state_element(args.denominator.source(row), dtype, c);
    largest = load_state_element(args.maximum.source(row), dtype, c);
  }
  for (int64_t t = first_token(args, row); t < first_token(args, row + 1); ++t) {
    const int64_t at = t * args.cols + c;
    const double k = args.k[at], v = args.v[at], newest = args.first[c] + k;
    double top = std::max(largest, newest);
    double old = std::exp(largest - top), now = std::exp(newest - top);
    const double mean = (old * num + now * v) / (old * den + now);
    args.y[at] = static_cast<float>(mean / (1.0 + std::exp(-static_cast<double>(args.r[at]))));
    top = std::max(largest + args.decay[c], k);
    old = std::exp(largest + args.decay[c] - top);
    now = std::exp(k - top);
    num = args.numerator.kept(old * num + now * v);
    den = args.denominator.kept(old * den + now);
    largest = args.maximum.kept(top);
  }
  store_state_element(args.numerator.target(row), dtype, c, static_cast<float>(num));
  store_state_element(args.denominator.target(row), dtype, c, static_cast<float>(den));
  store_state_element(args.maximum.target(row), dtype, c, static_cast<float>(largest));
}

// One value channel of one head; `place(k)` is the element of the state that belongs to key k.
template <typename Place>
void wkv6_channel(const Wkv6Args& args, int64_t row, int64_t head, int64_t v, Place&& place) {
  const int64_t n = args.head_dim, width = args.num_heads * n, channel = head * n;
  std::vector<double> s(static_cast<size_t>(n), 0.0);
  const void* source = args.state.source(row);
  for (int64_t k = 0; k < n && source != nullptr; ++k)
    s[static_cast<size_t>(k)] = load_state_element(source, args.state.dtype, place(k));
  for (int64_t t = first_token(args, row); t < first_token(args, row + 1); ++t) {
    const int64_t at = t * width + channel;
    double y = 0.0;
    for (int64_t k = 0; k < n; ++k) {
      double& cell = s[static_cast<size_t>(k)];
      const double product = static_cast<double>(args.k[at + k]) * args.v[at + v];
      y += args.r[at + k] * (cell + args.u[channel + k] * product);
      cell = args.state.kept(args.w[t * args.w_stride + channel + k] * cell + product);
    }
    args.y[at + v] = static_cast<float>(y);
  }
  void* target = args.state.target(row);
  for (int64_t k = 0; k < n; ++k)
    store_state_element(target, args.state.dtype, place(k), static_cast<float>(s[static_cast<size_t>(k)]));
}

template <typename Place>
void wkv7_channel(const Wkv7Args& args, int64_t row, int64_t head, int64_t v, Place&& place) {
  const int64_t n = args.head_dim, width = args.num_heads * n;
  std::vector<double> s(static_cast<size_t>(n), 0.0);
  const void* source = args.state.source(row);
  for (int64_t k = 0; k < n && source != nullptr; ++k)
    s[static_cast<size_t>(k)] = load_state_element(source, args.state.dtype, place(k));
  for (int64_t t = first_token(args, row); t < first_token(args, row + 1); ++t) {
    const int64_t at = t * width + head * n;
    double projected = 0.0, y = 0.0;
    for (int64_t k = 0; k < n; ++k) projected += s[static_cast<size_t>(k)] * args.a[at + k];
    for (int64_t k = 0; k < n; ++k) {
      double& cell = s[static_cast<size_t>(k)];
      cell = args.state.kept(args.w[at + k] * cell + projected * args.b[at + k] +
                             static_cast<double>(args.v[at + v]) * args.k[at + k]);
      y += cell * args.r[at + k];
    }
    args.y[at + v] = static_cast<float>(y);
  }
  void* target = args.state.target(row);
  for (int64_t k = 0; k < n; ++k)
    store_state_element(target, args.state.dtype, place(k), static_cast<float>(s[static_cast<size_t>(k)]));
}

// Calls channel(row, head, v) for each row with a slot; the other rows' outputs are 0.
template <typename Args, typename Channel>
void each_channel(const Args& args, Channel&& channel) {
  const int64_t n = args.head_dim, width = args.num_heads * n;
  for (int64_t row = 0; row < args.rows; ++row) {
    if (args.state.is_null(row)) {
      std::fill(args.y + first_token(args, row) * width, args.y + first_token(args, row + 1) * width, 0.0f);
      continue;
    }
    for (int64_t head = 0; head < args.num_heads; ++head) {
      for (int64_t v = 0; v < n; ++v) channel(row, head, v);
    }
  }
}

}  // namespace

void wkv4(const Wkv4Args& args, ThreadPool&) {
  for (int64_t row = 0; row < args.rows; ++row) {
    if (args.numerator.is_null(row)) {
      std::fill(args.y + first_token(args, row) * args.cols, args.y + first_token(args, row + 1) * args.cols, 0.0f);
      continue;
    }
    for (int64_t c = 0; c < args.cols; ++c) wkv4_channel(args, row, c);
  }
}

void wkv6(const Wkv6Args& args, ThreadPool&, Workspace&) {
  const int64_t n = args.head_dim;
  each_channel(args, [&](int64_t row, int64_t head, int64_t v) {
    wkv6_channel(args, row, head, v, [&](int64_t k) { return (head * n + k) * n + v; });
  });
}

void wkv7(const Wkv7Args& args, ThreadPool&, Workspace&) {
  const int64_t n = args.head_dim;
  each_channel(args, [&](int64_t row, int64_t head, int64_t v) {
    const int64_t block = v / 16 * 16, width = std::min<int64_t>(16, n - block);
    wkv7_channel(args, row, head, v, [&](int64_t k) { return head * n * n + block * n + k * width + v - block; });
  });
}

}  // namespace coluber::ref
