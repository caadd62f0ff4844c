// SPDX-License-Identifier: Apache-2.0
// Everything here is bound by memory or by exp: one pass over the lines, whole vectors, a masked last one.
#include "kernels/simd/vec_recurrent.inl"

COLUBER_INLINE int lanes_at(int64_t c, int64_t end) { return static_cast<int>(std::min<int64_t>(kLanes, end - c)); }

// Channels that one task of token_shift takes: whole cache lines, and enough tasks for one long row.
inline constexpr int64_t kShiftChannels = 256;

template <typename S>
inline void token_shift_row(const TokenShiftArgs& args, int64_t row, int64_t begin, int64_t end, int64_t c0,
                            int64_t c1) {
  const S* source = static_cast<const S*>(args.state.source(row));
  S* target = static_cast<S*>(args.state.target(row));
  for (int64_t t = begin; t < end; ++t) {
    const float* x = args.x + t * args.cols;
    for (int64_t c = c0; c < c1; c += kLanes) {
      const int lanes = lanes_at(c, c1);
      Vec before = zero();
      if (t > begin) {
        before = load_n(x - args.cols + c, lanes);
      } else if (source != nullptr) {
        before = load_state_n(source + c, lanes);
      }
      store_n(args.delta + t * args.cols + c, before - load_n(x + c, lanes), lanes);
    }
  }
  for (int64_t c = c0; c < c1; c += kLanes) {
    const int lanes = lanes_at(c, c1);
    if (end > begin) {
      store_state_n(target + c, load_n(args.x + (end - 1) * args.cols + c, lanes), lanes);
    } else {
      store_state_n(target + c, source == nullptr ? zero() : load_state_n(source + c, lanes), lanes);
    }
  }
}

inline void token_shift(const TokenShiftArgs& args, ThreadPool& pool) {
  const int64_t parts = (args.cols + kShiftChannels - 1) / kShiftChannels;
  const int64_t tasks = args.rows * parts;
  pool.parallel_for(tasks, std::max<int64_t>(1, tasks / (8 * pool.size())), [&](int64_t first, int64_t last, int) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / parts, c0 = task % parts * kShiftChannels;
      const int64_t c1 = std::min(args.cols, c0 + kShiftChannels);
      const int64_t begin = args.query_start_loc == nullptr ? row : args.query_start_loc[row];
      const int64_t end = args.query_start_loc == nullptr ? row + 1 : args.query_start_loc[row + 1];
      if (args.state.is_null(row)) {
        for (int64_t t = begin; t < end; ++t) {
          std::memset(args.delta + t * args.cols + c0, 0, static_cast<size_t>(c1 - c0) * sizeof(float));
        }
      } else {
        by_state_type(args.state.dtype,
                      [&](auto type) { token_shift_row<decltype(type)>(args, row, begin, end, c0, c1); });
      }
    }
  });
}

inline void token_mix(const TokenMixArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.tokens, 1, [&](int64_t first, int64_t last, int) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t c = 0; c < args.cols; c += kLanes) {
        const int lanes = lanes_at(c, args.cols);
        const int64_t at = t * args.cols + c;
        const Vec x = load_n(args.x + at, lanes), delta = load_n(args.delta + at, lanes);
        for (int64_t j = 0; j < args.mixes; ++j) {
          Vec mu = load_n(args.mu[j] + c, lanes);
          if (args.dynamic[j] != nullptr) mu = mu + load_n(args.dynamic[j] + at, lanes);
          store_n(args.out[j] + at, fma(delta, mu, x), lanes);
        }
      }
    }
  });
}

// Near 0 the quotient of exponentials loses the value's own digits; an odd polynomial keeps them.
COLUBER_INLINE Vec tanhv(Vec x) {
  const Vec size = max(x, zero() - x);
  const Vec tail = set1(1.0f) - set1(2.0f) / (set1(1.0f) + expv(size + size));
  const Vec far = select_gt(zero(), x, zero() - tail, tail);
  const Vec z = x * x;
  Vec p = set1(-929569.0f / 638512875.0f);
  p = fma(p, z, set1(21844.0f / 6081075.0f));
  p = fma(p, z, set1(-1382.0f / 155925.0f));
  p = fma(p, z, set1(62.0f / 2835.0f));
  p = fma(p, z, set1(-17.0f / 315.0f));
  p = fma(p, z, set1(2.0f / 15.0f));
  p = fma(p, z, set1(-1.0f / 3.0f));
  const Vec near = fma(p * z, x, x);
  return keep_nan(x, select_gt(size, set1(0.5f), far, near));
}

COLUBER_INLINE Vec wkv_mapped(WkvMap map, Vec x) {
  switch (map) {
    case WkvMap::kSigmoid:
      return sigmoidv(x);
    case WkvMap::kExpNegExp:
      return expv(zero() - expv(x));
    case WkvMap::kBoundedDecay:
      return expv(set1(-0.60653066f) * sigmoidv(x));
    default:
      return tanhv(x);
  }
}

inline void wkv_map(const WkvMapArgs& args, ThreadPool& pool) {
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, args.cols));
  pool.parallel_for(args.tokens, grain, [&](int64_t first, int64_t last, int) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t c = 0; c < args.cols; c += kLanes) {
        const int lanes = lanes_at(c, args.cols);
        Vec x = load_n(args.x + t * args.cols + c, lanes);
        if (args.bias != nullptr) x = x + load_n(args.bias + c, lanes);
        store_n(args.y + t * args.cols + c, wkv_mapped(args.map, x), lanes);
      }
    }
  });
}

COLUBER_INLINE Vec head_gated(HeadGate kind, Vec y, Vec gate) {
  switch (kind) {
    case HeadGate::kPlain:
      return y * gate;
    case HeadGate::kSilu:
      return y * siluv(gate);
    case HeadGate::kSigmoid:
      return y * sigmoidv(gate);
    default:
      return y;
  }
}

// Lanes behind the last value give 0.
COLUBER_INLINE Vec centred(const float* x, int64_t n, int64_t end, Vec mean) {
  const int lanes = lanes_at(n, end);
  alignas(64) static const float kIota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Vec value = load_n(x + n, lanes) - mean;
  return lanes == kLanes ? value : select_gt(set1(static_cast<float>(lanes) - 0.5f), load(kIota), value, zero());
}

inline void head_norm_one(const HeadNormArgs& args, int64_t token, int64_t head) {
  const int64_t n = args.head_dim, channel = head * n, at = token * args.num_heads * n + channel;
  const float* x = args.x + at;
  Vec sum = zero(), square = zero(), bonus = zero();
  for (int64_t i = 0; i < n; i += kLanes) sum = sum + load_n(x + i, lanes_at(i, n));
  const Vec mean = set1(reduce_add(sum) / static_cast<float>(n));
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec c = centred(x, i, n, mean);
    square = fma(c, c, square);
  }
  const Vec scale = set1(1.0f / std::sqrt(reduce_add(square) / static_cast<float>(n) + args.eps));
  if (args.r != nullptr) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const int lanes = lanes_at(i, n);
      const Vec rk = load_n(args.r + at + i, lanes) * load_n(args.k + at + i, lanes);
      bonus = fma(rk, load_n(args.r_k + channel + i, lanes), bonus);
    }
    bonus = set1(reduce_add(bonus));
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    const int lanes = lanes_at(i, n);
    const Vec normed = (load_n(x + i, lanes) - mean) * scale;
    Vec y = args.bias == nullptr ? zero() : load_n(args.bias + channel + i, lanes);
    y = fma(normed, load_n(args.weight + channel + i, lanes), y);
    if (args.r != nullptr) y = fma(bonus, load_n(args.v + at + i, lanes), y);
    const Vec gate =
        args.gate_kind == HeadGate::kNone ? zero() : load_n(args.gate + token * args.gate_stride + channel + i, lanes);
    store_n(args.y + at + i, head_gated(args.gate_kind, y, gate), lanes);
  }
}

inline void head_norm(const HeadNormArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.tokens, 1, [&](int64_t first, int64_t last, int) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t head = 0; head < args.num_heads; ++head) head_norm_one(args, t, head);
    }
  });
}

inline void wkv7_prepare_one(const Wkv7PrepareArgs& args, int64_t token, int64_t head) {
  const int64_t n = args.head_dim, channel = head * n, at = token * args.num_heads * n + channel;
  Vec square = zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const int lanes = lanes_at(i, n);
    const Vec scaled = load_n(args.k + at + i, lanes) * load_n(args.k_k + channel + i, lanes);
    square = fma(scaled, scaled, square);
  }
  const Vec inverse = set1(1.0f / std::sqrt(std::max(reduce_add(square), 1e-24f) + args.eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const int lanes = lanes_at(i, n);
    const Vec k = load_n(args.k + at + i, lanes), a = load_n(args.a + at + i, lanes);
    const Vec kk = k * load_n(args.k_k + channel + i, lanes) * inverse;
    const Vec growth = fma(a - set1(1.0f), load_n(args.k_a + channel + i, lanes), set1(1.0f));
    store_n(args.kk + at + i, zero() - kk, lanes);
    store_n(args.a + at + i, kk * a, lanes);
    store_n(args.k + at + i, k * growth, lanes);
    if (args.v_gate != nullptr) {
      const Vec v = load_n(args.v + at + i, lanes);
      const Vec toward = load_n(args.v_first + at + i, lanes) - v;
      store_n(args.v + at + i, fma(toward, load_n(args.v_gate + at + i, lanes), v), lanes);
    }
  }
}

inline void wkv7_prepare(const Wkv7PrepareArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.tokens, 1, [&](int64_t first, int64_t last, int) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t head = 0; head < args.num_heads; ++head) wkv7_prepare_one(args, t, head);
    }
  });
}
