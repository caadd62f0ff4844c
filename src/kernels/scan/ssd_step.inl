// SPDX-License-Identifier: Apache-2.0
// One token of one head: a single sweep over S [P, N] in place, four rows at a time so that their sums hide each
// other's latency.
#include "kernels/simd/vec_recurrent.inl"

struct SsdStep {
  const float* x = nullptr;  // [P]
  const float* b = nullptr;  // [N]
  const float* c = nullptr;  // [N]
  float* y = nullptr;        // [P]; may be x
  int64_t p = 0;
  int64_t n = 0;
  float decay = 1.0f;
  float dt = 0.0f;
  float d = 0.0f;
};

// Rows [row, row + kRows). `in` advances by in_stride a row: 0 where the state is one row of zeros.
template <int kRows, typename In, typename Out>
COLUBER_INLINE void ssd_step_rows(const SsdStep& step, int64_t row, const In* in, int64_t in_stride, Out* out) {
  const Vec decay = set1(step.decay);
  Vec input[kRows], sum[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    input[r] = set1(step.x[row + r] * step.dt);
    sum[r] = zero();
  }
  in += row * in_stride;
  out += row * step.n;
  int64_t n = 0;
  for (; n + kLanes <= step.n; n += kLanes) {
    const Vec b = load(step.b + n), c = load(step.c + n);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec s = fma(decay, load_state(in + r * in_stride + n), input[r] * b);
      store_state(out + r * step.n + n, s);
      sum[r] = fma(s, c, sum[r]);
    }
  }
  if (n < step.n) {
    const int left = static_cast<int>(step.n - n);
    const Vec b = load_n(step.b + n, left), c = load_n(step.c + n, left);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec s = fma(decay, load_state_n(in + r * in_stride + n, left), input[r] * b);
      store_state_n(out + r * step.n + n, s, left);
      sum[r] = fma(s, c, sum[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) step.y[row + r] = reduce_add(sum[r]) + step.d * step.x[row + r];
}

template <typename In, typename Out>
inline void ssd_step_head(const SsdStep& step, const In* in, int64_t in_stride, Out* out) {
  int64_t row = 0;
  for (; row + 4 <= step.p; row += 4) ssd_step_rows<4>(step, row, in, in_stride, out);
  for (; row < step.p; ++row) ssd_step_rows<1>(step, row, in, in_stride, out);
}

inline float ssd_dt(const SsdArgs& args, int64_t token, int64_t head) {
  float dt = args.dt[token * args.dt_stride + head];
  if (args.dt_bias != nullptr) dt += args.dt_bias[head];
  if (dt <= 20.0f) dt = std::log1p(std::exp(dt));
  return std::min(std::max(dt, args.dt_min), args.dt_max);
}

// Token `token` of head `head` of row `row`; `first` reads the row's source, later tokens what the one before wrote.
template <typename S>
inline void ssd_step_token(const SsdArgs& args, int64_t row, int64_t token, int64_t head, bool first) {
  alignas(64) static const float kZeros[kMaxSsdState] = {};
  const int64_t group = head / (args.num_heads / args.num_groups);
  const int64_t place = head * args.head_dim * args.state_size;
  const float dt = ssd_dt(args, token, head);
  SsdStep step;
  step.x = args.x + token * args.x_stride + head * args.head_dim;
  step.b = args.b + token * args.b_stride + group * args.state_size;
  step.c = args.c + token * args.c_stride + group * args.state_size;
  step.y = args.y + token * args.y_stride + head * args.head_dim;
  step.p = args.head_dim;
  step.n = args.state_size;
  step.decay = std::exp(dt * args.a[head]);
  step.dt = dt;
  step.d = args.d != nullptr ? args.d[head] : 0.0f;
  S* target = static_cast<S*>(args.state.target(row)) + place;
  const void* source = first ? args.state.source(row) : args.state.target(row);
  if (source == nullptr) {
    ssd_step_head(step, static_cast<const float*>(kZeros), 0, target);
  } else {
    ssd_step_head(step, static_cast<const S*>(source) + place, args.state_size, target);
  }
}

template <typename Work>
COLUBER_INLINE void ssd_by_state_type(DType dtype, Work&& work) {
  switch (dtype) {
    case DType::kBFloat16:
      return work(StateBf16{});
    case DType::kFloat16:
      return work(StateF16{});
    default:
      return work(float{});
  }
}

// The output of a row without a slot, for heads [h0, h1).
inline void ssd_zero_rows(const SsdArgs& args, int64_t begin, int64_t end, int64_t h0, int64_t h1) {
  for (int64_t t = begin; t < end; ++t) {
    std::memset(args.y + t * args.y_stride + h0 * args.head_dim, 0,
                static_cast<size_t>((h1 - h0) * args.head_dim) * sizeof(float));
  }
}
