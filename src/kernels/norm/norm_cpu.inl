// SPDX-License-Identifier: Apache-2.0
// One row (or one group of a row) at a time: a pass that sums, a pass that writes. The second pass finds the row in
// cache.

// Calls body(column, count) over vectors; the last may be partial.
template <typename Body>
COLUBER_INLINE void for_vectors(int64_t cols, Body body) {
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) body(c, kLanes);
  if (c < cols) body(c, static_cast<int>(cols - c));
}

COLUBER_INLINE Vec load_part(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }
COLUBER_INLINE void store_part(float* p, Vec v, int n) {
  if (n == kLanes) {
    store(p, v);
  } else {
    store_n(p, v, n);
  }
}

// Four sums in turn, joined in a fixed order.
struct Sums {
  Vec part[4];
  COLUBER_INLINE Sums() : part{zero(), zero(), zero(), zero()} {}
  COLUBER_INLINE float total() const { return reduce_add((part[0] + part[1]) + (part[2] + part[3])); }
};

COLUBER_INLINE float sum_of_squares(const float* x, int64_t cols, Vec shift) {
  Sums sums;
  int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec v = load(x + c + i * kLanes) - shift;
      sums.part[i] = fma(v, v, sums.part[i]);
    }
  }
  for (int i = 0; c < cols; ++i, c += kLanes) {
    const int n = static_cast<int>(std::min<int64_t>(kLanes, cols - c));
    const Vec d = load_part(x + c, n) - shift;
    float lanes[kLanes];
    store(lanes, d);
    const Vec v = load_n(lanes, n);  // the lanes beyond the row hold -shift
    sums.part[i] = fma(v, v, sums.part[i]);
  }
  return sums.total();
}

COLUBER_INLINE float sum_of(const float* x, int64_t cols) {
  Sums sums;
  int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums.part[i] = sums.part[i] + load(x + c + i * kLanes);
  }
  for (int i = 0; c < cols; ++i, c += kLanes) {
    sums.part[i] = sums.part[i] + load_part(x + c, static_cast<int>(std::min<int64_t>(kLanes, cols - c)));
  }
  return sums.total();
}

COLUBER_INLINE float inverse_root(float sum, int64_t cols, float eps) {
  return 1.0f / std::sqrt(sum / static_cast<float>(cols) + eps);
}

// The weight at column c, of the whole row.
COLUBER_INLINE Vec weight_at(const RmsNormArgs& args, int64_t c, int n) {
  return args.weight == nullptr ? set1(1.0f) : load_part(args.weight + c, n) + set1(args.weight_offset);
}

inline void rms_norm_rows(const RmsNormArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.rows, norm_grain(args.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = args.x + row * args.x_stride;
      float* y = args.y + row * args.y_stride;
      const Vec scale = set1(inverse_root(sum_of_squares(x, args.cols, zero()), args.cols, args.eps));
      for_vectors(args.cols,
                  [&](int64_t c, int n) { store_part(y + c, load_part(x + c, n) * scale * weight_at(args, c, n), n); });
    }
  });
}

template <Gate kGate>
COLUBER_INLINE Vec gate_value(Vec z) {
  if constexpr (kGate == Gate::kSilu) {
    return siluv(z);
  } else {
    return sigmoidv(z);
  }
}

template <Gate kGate, bool kGateFirst>
void gated_group(const GatedRmsNormArgs& args, int64_t row, int64_t group) {
  const int64_t cols = args.norm.cols / args.groups, from = group * cols;
  const float* x = args.norm.x + row * args.norm.x_stride + from;
  const float* z = args.z + row * args.z_stride + from;
  float* y = args.norm.y + row * args.norm.y_stride + from;
  if constexpr (kGateFirst) {
    for_vectors(cols, [&](int64_t c, int n) {
      store_part(y + c, load_part(x + c, n) * gate_value<kGate>(load_part(z + c, n)), n);
    });
    x = y;
  }
  const Vec scale = set1(inverse_root(sum_of_squares(x, cols, zero()), cols, args.norm.eps));
  for_vectors(cols, [&](int64_t c, int n) {
    Vec v = load_part(x + c, n) * scale * weight_at(args.norm, from + c, n);
    if constexpr (!kGateFirst) v = v * gate_value<kGate>(load_part(z + c, n));
    store_part(y + c, v, n);
  });
}

template <Gate kGate, bool kGateFirst>
void gated_rows(const GatedRmsNormArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.norm.rows * args.groups, norm_grain(args.norm.cols / args.groups),
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t i = begin; i < end; ++i)
                        gated_group<kGate, kGateFirst>(args, i / args.groups, i % args.groups);
                    });
}

template <bool kGateFirst>
void gated_rms_norm(const GatedRmsNormArgs& args, ThreadPool& pool) {
  if (args.gate == Gate::kSilu) {
    gated_rows<Gate::kSilu, kGateFirst>(args, pool);
  } else {
    gated_rows<Gate::kSigmoid, kGateFirst>(args, pool);
  }
}

inline void layer_norm_rows(const LayerNormArgs& args, ThreadPool& pool) {
  const RmsNormArgs& norm = args.norm;
  pool.parallel_for(norm.rows, norm_grain(norm.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = norm.x + row * norm.x_stride;
      float* y = norm.y + row * norm.y_stride;
      const Vec mean = set1(sum_of(x, norm.cols) / static_cast<float>(norm.cols));
      const Vec scale = set1(inverse_root(sum_of_squares(x, norm.cols, mean), norm.cols, norm.eps));
      for_vectors(norm.cols, [&](int64_t c, int n) {
        Vec v = (load_part(x + c, n) - mean) * scale * weight_at(norm, c, n);
        if (args.bias != nullptr) v = v + load_part(args.bias + c, n);
        store_part(y + c, v, n);
      });
    }
  });
}

inline constexpr NormFunctions kFunctions = {rms_norm_rows, gated_rms_norm<true>, gated_rms_norm<false>,
                                             layer_norm_rows};
