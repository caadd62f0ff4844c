// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd_replay_ref.h"

#include <algorithm>
#include <cmath>

namespace coluber::ref {
namespace {

struct Slot {
  float* x;
  float* dt;
  float* b;
};

Slot ring_of(const SsdReplayArgs& args, int64_t row, int64_t head, int64_t group) {
  const SsdArgs& s = args.ssd;
  const int64_t offset = s.state.dst[row * s.state.index_stride] * args.ring.slot_stride_bytes;
  const auto at = [offset](float* base) { return reinterpret_cast<float*>(reinterpret_cast<char*>(base) + offset); };
  return {at(args.ring.x) + head * args.ring.length * s.head_dim, at(args.ring.dt) + head * args.ring.length,
          at(args.ring.b) + group * args.ring.length * s.state_size};
}

float step_size(const SsdArgs& args, int64_t t, int64_t head) {
  double dt = args.dt[t * args.dt_stride + head];
  if (args.dt_bias != nullptr) dt += args.dt_bias[head];
  if (dt <= 20.0) dt = std::log1p(std::exp(dt));
  return static_cast<float>(std::min<double>(std::max<double>(dt, args.dt_min), args.dt_max));
}

// s [N] as it stands after the ring's inputs.
void replay(const SsdReplayArgs& args, const Slot& ring, int64_t row, int64_t head, int64_t p, double* s) {
  const SsdArgs& a = args.ssd;
  const void* source = a.state.source(row);
  const int64_t place = (head * a.head_dim + p) * a.state_size;
  for (int64_t n = 0; n < a.state_size && source != nullptr; ++n)
    s[n] = load_state_element(source, a.state.dtype, place + n);
  for (int64_t j = 0; j < args.counts[row]; ++j) {
    const double dt = ring.dt[j], decay = std::exp(dt * a.a[head]);
    for (int64_t n = 0; n < a.state_size; ++n)
      s[n] = decay * s[n] + dt * ring.x[j * a.head_dim + p] * ring.b[j * a.state_size + n];
  }
}

void store(const SsdArgs& a, int64_t row, int64_t head, int64_t p, const double* s) {
  const int64_t place = (head * a.head_dim + p) * a.state_size;
  for (int64_t n = 0; n < a.state_size; ++n)
    store_state_element(a.state.target(row), a.state.dtype, place + n, static_cast<float>(s[n]));
}

void step_head(const SsdReplayArgs& args, int64_t row, int64_t head) {
  const SsdArgs& a = args.ssd;
  const int64_t group = head / (a.num_heads / a.num_groups), count = args.counts[row];
  const Slot ring = ring_of(args, row, head, group);
  const float dt = step_size(a, row, head);
  const double decay = std::exp(double{dt} * a.a[head]);
  const bool flush = args.flush[row] != 0 || a.state.is_fresh(row);
  const float* b = a.b + row * a.b_stride + group * a.state_size;
  const float* c = a.c + row * a.c_stride + group * a.state_size;
  for (int64_t p = 0; p < a.head_dim; ++p) {
    const float x = a.x[row * a.x_stride + head * a.head_dim + p];
    double s[kMaxSsdState] = {};
    replay(args, ring, row, head, p, s);
    double y = a.d != nullptr ? double{a.d[head]} * x : 0.0;
    for (int64_t n = 0; n < a.state_size; ++n) {
      s[n] = decay * s[n] + double{dt} * x * b[n];
      y += s[n] * c[n];
    }
    if (flush) {
      store(a, row, head, p, s);
    } else {
      ring.x[count * a.head_dim + p] = x;
    }
    a.y[row * a.y_stride + head * a.head_dim + p] = static_cast<float>(y);
  }
  if (flush) return;
  ring.dt[count] = dt;
  std::copy_n(b, a.state_size, ring.b + count * a.state_size);
}

}  // namespace

void ssd_replay_step(const SsdReplayArgs& args, ThreadPool&) {
  const SsdArgs& a = args.ssd;
  for (int64_t row = 0; row < a.rows; ++row) {
    if (a.state.is_null(row)) {
      std::fill_n(a.y + row * a.y_stride, a.num_heads * a.head_dim, 0.0f);
      continue;
    }
    for (int64_t head = 0; head < a.num_heads; ++head) step_head(args, row, head);
  }
}

void ssd_replay_fold(const SsdReplayArgs& args, ThreadPool&) {
  const SsdArgs& a = args.ssd;
  for (int64_t row = 0; row < a.rows; ++row) {
    if (a.state.is_null(row) || a.state.is_fresh(row) || args.counts[row] == 0) continue;
    for (int64_t head = 0; head < a.num_heads; ++head) {
      const Slot ring = ring_of(args, row, head, head / (a.num_heads / a.num_groups));
      for (int64_t p = 0; p < a.head_dim; ++p) {
        double s[kMaxSsdState] = {};
        replay(args, ring, row, head, p, s);
        store(a, row, head, p, s);
      }
    }
  }
}

}  // namespace coluber::ref
