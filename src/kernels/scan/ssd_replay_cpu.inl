// SPDX-License-Identifier: Apache-2.0
// Replay: bound by the bytes of the state, which a step reads once. What the ring adds to the outputs is a few products
// of its inputs, whose dots with C are shared by the heads of a group. A flush is a product of rank m + 1 on the way of
// the state through the registers, four rows of it at a time.
#include "kernels/scan/ssd_step.inl"

// One head of one row as the sums need it. `x` and `b` are the ring's, [count, P] and [count, N]; the token's own input
// comes last, where there is one: its `last_b` is not read from the ring, which another thread may be writing.
struct SsdReplayHead {
  const float* x = nullptr;
  const float* b = nullptr;
  const float* last_x = nullptr;
  const float* last_b = nullptr;
  const float* c = nullptr;
  float* y = nullptr;
  int64_t count = 0;
  int64_t p = 0;
  int64_t n = 0;
  float decay = 1.0f;  // of the state
  float d = 0.0f;
  float weight[kMaxSsdReplay + 1 + kLanes];  // dt[j] * e[j]
};

inline float* ring_part(const SsdReplayArgs& args, int64_t row, float* base) {
  const StateSlots& state = args.ssd.state;
  return reinterpret_cast<float*>(reinterpret_cast<char*>(base) +
                                  state.dst[row * state.index_stride] * args.ring.slot_stride_bytes);
}

// weight[j] = dt[j] * exp(a * (dt[j+1] + ... + dt[total-1])), and the decay of the state before them.
inline void replay_weights(const float* dt, int64_t total, float a, SsdReplayHead& head) {
  constexpr float kLog2E = 1.4426950408889634f;
  float sum = 0.0f;
  for (int64_t j = total - 1; j >= 0; --j) {
    head.weight[j] = sum * (a * kLog2E);
    sum += dt[j];
  }
  for (int64_t j = 0; j < total; j += kLanes) {
    const int left = static_cast<int>(std::min<int64_t>(kLanes, total - j));
    const Vec e = exp2_decay(load_n(head.weight + j, left));
    store_n(head.weight + j, e * load_n(dt + j, left), left);
  }
  head.decay = std::exp(sum * a);
}

inline float dot(const float* a, const float* b, int64_t n) {
  Vec sum = zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = fma(load(a + i), load(b + i), sum);
  if (i < n) {
    const int left = static_cast<int>(n - i);
    sum = fma(load_n(a + i, left), load_n(b + i, left), sum);
  }
  return reduce_add(sum);
}

// y = what the ring and the token give: a sum over inputs for every element of the head.
inline void replay_inputs(const SsdReplayHead& head, const float* dots) {
  float factor[kMaxSsdReplay + 1];
  for (int64_t j = 0; j <= head.count; ++j) factor[j] = head.weight[j] * dots[j];
  const Vec own = set1(factor[head.count] + head.d);
  for (int64_t p = 0; p < head.p; p += kLanes) {
    const int left = static_cast<int>(std::min<int64_t>(kLanes, head.p - p));
    Vec sum = own * load_n(head.last_x + p, left);
    for (int64_t j = 0; j < head.count; ++j) {
      sum = fma(set1(factor[j]), load_n(head.x + j * head.p + p, left), sum);
    }
    store_n(head.y + p, sum, left);
  }
}

inline constexpr int64_t kReplayAhead = 8192;

// Adds rows [row, row + kRows) of decay * S0 C to y.
template <int kRows, typename S>
COLUBER_INLINE void replay_read_rows(const SsdReplayHead& head, int64_t row, const S* state) {
  Vec sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = zero();
  state += row * head.n;
  int64_t n = 0;
  for (; n + kLanes <= head.n; n += kLanes) {
    const Vec c = load(head.c + n);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      prefetch(state + r * head.n + n + kReplayAhead / sizeof(S));
      sum[r] = fma(load_state(state + r * head.n + n), c, sum[r]);
    }
  }
  if (n < head.n) {
    const int left = static_cast<int>(head.n - n);
    const Vec c = load_n(head.c + n, left);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] = fma(load_state_n(state + r * head.n + n, left), c, sum[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) head.y[row + r] += head.decay * reduce_add(sum[r]);
}

template <typename S>
inline void replay_read(const SsdReplayHead& head, const S* state) {
  int64_t row = 0;
  for (; row + 4 <= head.p; row += 4) replay_read_rows<4>(head, row, state);
  for (; row < head.p; ++row) replay_read_rows<1>(head, row, state);
}

// kCols vectors of kRows rows, the last vector of `left` lanes where that is not 0.
template <int kRows, int kCols, typename S>
COLUBER_INLINE void replay_fold_block(const SsdReplayHead& head, const float* scaled, int64_t total, int64_t n,
                                      int left, S* state, Vec* sum) {
  Vec s[kRows][kCols];
  const auto input = [&](const float* b, const float* weights) {
    Vec column[kCols];
#pragma GCC unroll 4
    for (int v = 0; v < kCols; ++v) column[v] = left > 0 ? load_n(b + n, left) : load(b + n + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = set1(weights[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kCols; ++v) s[r][v] = fma(weight, column[v], s[r][v]);
    }
  };
  const Vec decay = set1(head.decay);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const S* from = state + r * head.n + n;
    const S* ahead = from + kRows * head.n;
#pragma GCC unroll 4
    for (int v = 0; v < kCols; ++v) {
      prefetch_write(const_cast<S*>(ahead + v * kLanes));
      s[r][v] = decay * (left > 0 ? load_state_n(from, left) : load_state(from + v * kLanes));
    }
  }
  for (int64_t j = 0; j < head.count; ++j) input(head.b + j * head.n, scaled + j * kRows);
  if (total > head.count) input(head.last_b, scaled + head.count * kRows);
#pragma GCC unroll 4
  for (int v = 0; v < kCols; ++v) {
    Vec c = zero();
    if (head.c != nullptr) c = left > 0 ? load_n(head.c + n, left) : load(head.c + n + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      S* to = state + r * head.n + n + v * kLanes;
      if (left > 0) {
        store_state_n(to, s[r][v], left);
      } else {
        store_state(to, s[r][v]);
      }
      sum[r] = fma(s[r][v], c, sum[r]);
    }
  }
}

template <int kRows, typename S>
inline void replay_fold_rows(const SsdReplayHead& head, int64_t row, S* state) {
  const int64_t total = head.count + (head.last_b != nullptr ? 1 : 0);
  float scaled[(kMaxSsdReplay + 1) * kRows];
  for (int64_t j = 0; j < total; ++j) {
    const float* x = j < head.count ? head.x + j * head.p : head.last_x;
    for (int r = 0; r < kRows; ++r) scaled[j * kRows + r] = head.weight[j] * x[row + r];
  }
  Vec sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = zero();
  S* rows = state + row * head.n;
  int64_t n = 0;
  constexpr int kCols = kRegisters / 8;
  for (; n + kCols * kLanes <= head.n; n += kCols * kLanes)
    replay_fold_block<kRows, kCols>(head, scaled, total, n, 0, rows, sum);
  for (; n + kLanes <= head.n; n += kLanes) replay_fold_block<kRows, 1>(head, scaled, total, n, 0, rows, sum);
  if (n < head.n) replay_fold_block<kRows, 1>(head, scaled, total, n, static_cast<int>(head.n - n), rows, sum);
  if (head.c == nullptr) return;
  for (int r = 0; r < kRows; ++r) head.y[row + r] = reduce_add(sum[r]) + head.d * head.last_x[row + r];
}

template <typename S>
inline void replay_fold(const SsdReplayHead& head, S* state) {
  int64_t row = 0;
  for (; row + 4 <= head.p; row += 4) replay_fold_rows<4>(head, row, state);
  for (; row < head.p; ++row) replay_fold_rows<1>(head, row, state);
}

// What a head has of its slot's ring.
inline SsdReplayHead ring_head(const SsdReplayArgs& args, int64_t row, int64_t h) {
  const SsdArgs& a = args.ssd;
  SsdReplayHead head;
  head.p = a.head_dim;
  head.n = a.state_size;
  head.count = args.counts[row];
  head.x = ring_part(args, row, args.ring.x) + h * args.ring.length * head.p;
  head.b = ring_part(args, row, args.ring.b) + h / (a.num_heads / a.num_groups) * args.ring.length * head.n;
  return head;
}

template <typename S>
inline void replay_step_head(const SsdReplayArgs& args, int64_t row, int64_t h, const float* dots) {
  const SsdArgs& a = args.ssd;
  const int64_t heads_a_group = a.num_heads / a.num_groups, group = h / heads_a_group;
  SsdReplayHead head = ring_head(args, row, h);
  head.last_x = a.x + row * a.x_stride + h * head.p;
  head.last_b = a.b + row * a.b_stride + group * head.n;
  head.c = a.c + row * a.c_stride + group * head.n;
  head.y = a.y + row * a.y_stride + h * head.p;
  head.d = a.d != nullptr ? a.d[h] : 0.0f;
  float* ring_dt = ring_part(args, row, args.ring.dt) + h * args.ring.length;
  float dt[kMaxSsdReplay + 1];
  std::copy_n(ring_dt, head.count, dt);
  dt[head.count] = ssd_dt(a, row, h);
  replay_weights(dt, head.count + 1, a.a[h], head);
  S* state = static_cast<S*>(a.state.target(row)) + h * head.p * head.n;
  if (args.flush[row] != 0) return replay_fold(head, state);
  ring_dt[head.count] = dt[head.count];
  std::copy_n(head.last_x, head.p, ring_part(args, row, args.ring.x) + (h * args.ring.length + head.count) * head.p);
  if (h % heads_a_group == 0) {
    std::copy_n(head.last_b, head.n,
                ring_part(args, row, args.ring.b) + (group * args.ring.length + head.count) * head.n);
  }
  replay_inputs(head, dots);
  replay_read(head, state);
}

// b[j] . c of a row's group, the token's own last.
inline void replay_dots(const SsdReplayArgs& args, int64_t row, int64_t group, float* dots) {
  const SsdArgs& a = args.ssd;
  const float* c = a.c + row * a.c_stride + group * a.state_size;
  const float* b = ring_part(args, row, args.ring.b) + group * args.ring.length * a.state_size;
  for (int64_t j = 0; j < args.counts[row]; ++j) dots[j] = dot(b + j * a.state_size, c, a.state_size);
  dots[args.counts[row]] = dot(a.b + row * a.b_stride + group * a.state_size, c, a.state_size);
}

inline void replay_step_heads(const SsdReplayArgs& args, int64_t first, int64_t last) {
  const SsdArgs& a = args.ssd;
  float dots[kMaxSsdReplay + 1];
  int64_t dots_of = -1;  // row and group
  for (int64_t task = first; task < last; ++task) {
    const int64_t row = task / a.num_heads, h = task % a.num_heads;
    if (a.state.is_null(row)) {
      ssd_zero_rows(a, row, row + 1, h, h + 1);
      continue;
    }
    const bool fresh = a.state.is_fresh(row);
    if (fresh || (args.flush[row] != 0 && args.counts[row] == 0)) {  // the plain step
      ssd_by_state_type(a.state.dtype, [&](auto type) { ssd_step_token<decltype(type)>(a, row, row, h, true); });
      continue;
    }
    const int64_t group = h / (a.num_heads / a.num_groups);
    if (args.flush[row] == 0 && dots_of != row * a.num_groups + group) {
      replay_dots(args, row, group, dots);
      dots_of = row * a.num_groups + group;
    }
    ssd_by_state_type(a.state.dtype, [&](auto type) { replay_step_head<decltype(type)>(args, row, h, dots); });
  }
}

inline void replay_fold_head(const SsdReplayArgs& args, int64_t row, int64_t h) {
  const SsdArgs& a = args.ssd;
  SsdReplayHead head = ring_head(args, row, h);
  replay_weights(ring_part(args, row, args.ring.dt) + h * args.ring.length, head.count, a.a[h], head);
  ssd_by_state_type(a.state.dtype, [&](auto type) {
    using S = decltype(type);
    replay_fold(head, static_cast<S*>(a.state.target(row)) + h * head.p * head.n);
  });
}

inline void ssd_replay_step(const SsdReplayArgs& args, ThreadPool& pool) {
  const int64_t tasks = args.ssd.rows * args.ssd.num_heads;
  pool.parallel_for(tasks, std::max<int64_t>(1, tasks / (4 * pool.size())), [&](int64_t first, int64_t last, int) {
    const SubnormalsAreZero guard;
    replay_step_heads(args, first, last);
  });
}

inline void ssd_replay_fold(const SsdReplayArgs& args, ThreadPool& pool) {
  const int64_t heads = args.ssd.num_heads, tasks = args.ssd.rows * heads;
  pool.parallel_for(tasks, std::max<int64_t>(1, tasks / (4 * pool.size())), [&](int64_t first, int64_t last, int) {
    const SubnormalsAreZero guard;
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / heads;
      const StateSlots& state = args.ssd.state;
      if (!state.is_null(row) && !state.is_fresh(row) && args.counts[row] > 0)
        replay_fold_head(args, row, task % heads);
    }
  });
}
