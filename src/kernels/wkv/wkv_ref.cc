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

template <typename Args>
RowParts parts_of(const Args& args, const StateSlots& state, int64_t row) {
  return RowParts(state, args.exports, row, first_token(args, row), first_token(args, row + 1));
}

void wkv4_channel(const Wkv4Args& args, int64_t row, int64_t c) {
  const DType dtype = DType::kFloat32;
  double num = 0.0, den = 0.0, largest = kWkv4NoMaximum;
  if (!args.numerator.is_fresh(row)) {
    num = load_state_element(args.numerator.source(row), dtype, c);
    den = load_state_element(args.denominator.source(row), dtype, c);
    largest = load_state_element(args.maximum.source(row), dtype, c);
  }
  for (const RowPart part : parts_of(args, args.numerator, row)) {
    for (int64_t t = part.begin; t < part.end; ++t) {
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
    store_state_element(args.numerator.at(part.slot), dtype, c, static_cast<float>(num));
    store_state_element(args.denominator.at(part.slot), dtype, c, static_cast<float>(den));
    store_state_element(args.maximum.at(part.slot), dtype, c, static_cast<float>(largest));
  }
}

// Calls token(t, s) for the tokens of a row; `s` is the state of one value channel of a head, whose element of key k is
// at place(k) in a slot.
template <typename Args, typename Place, typename Token>
void run_channel(const Args& args, int64_t row, Place&& place, Token&& token) {
  std::vector<double> s(static_cast<size_t>(args.head_dim), 0.0);
  const void* source = args.state.source(row);
  for (int64_t k = 0; k < args.head_dim && source != nullptr; ++k)
    s[static_cast<size_t>(k)] = load_state_element(source, args.state.dtype, place(k));
  for (const RowPart part : parts_of(args, args.state, row)) {
    for (int64_t t = part.begin; t < part.end; ++t) token(t, s);
    for (int64_t k = 0; k < args.head_dim; ++k)
      store_state_element(args.state.at(part.slot), args.state.dtype, place(k),
                          static_cast<float>(s[static_cast<size_t>(k)]));
  }
}

template <typename Place>
void wkv6_channel(const Wkv6Args& args, int64_t row, int64_t head, int64_t v, Place&& place) {
  const int64_t n = args.head_dim, width = args.num_heads * n, channel = head * n;
  run_channel(args, row, place, [&](int64_t t, std::vector<double>& s) {
    const int64_t at = t * width + channel;
    double y = 0.0;
    for (int64_t k = 0; k < n; ++k) {
      double& cell = s[static_cast<size_t>(k)];
      const double product = static_cast<double>(args.k[at + k]) * args.v[at + v];
      y += args.r[at + k] * (cell + args.u[channel + k] * product);
      cell = args.state.kept(args.w[t * args.w_stride + channel + k] * cell + product);
    }
    args.y[at + v] = static_cast<float>(y);
  });
}

template <typename Place>
void wkv7_channel(const Wkv7Args& args, int64_t row, int64_t head, int64_t v, Place&& place) {
  const int64_t n = args.head_dim, width = args.num_heads * n;
  run_channel(args, row, place, [&](int64_t t, std::vector<double>& s) {
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
  });
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
