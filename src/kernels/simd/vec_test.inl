// SPDX-License-Identifier: Apache-2.0
// Runs each function of the tier's vector type over arrays, so that the test can compare it with double arithmetic.
inline void apply_unary(Unary op, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec v = load(x + i);
    Vec r = zero();
    switch (op) {
      case Unary::kExp2:
        r = exp2v(v);
        break;
      case Unary::kExp:
        r = expv(v);
        break;
      case Unary::kLog:
        r = logv(v);
        break;
      case Unary::kSigmoid:
        r = sigmoidv(v);
        break;
      case Unary::kSilu:
        r = siluv(v);
        break;
      case Unary::kSoftplus:
        r = softplusv(v);
        break;
      case Unary::kSqrt:
        r = sqrt(v);
        break;
      case Unary::kRound:
        r = round(v);
        break;
      case Unary::kPow2i:
        r = pow2i(v);
        break;
      case Unary::kExponent:
        r = exponent_of(v);
        break;
      case Unary::kMantissa:
        r = mantissa_of(v);
        break;
    }
    store(y + i, r);
  }
}

inline void apply_ternary(Ternary op, const float* a, const float* b, const float* c, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec u = load(a + i), v = load(b + i), w = load(c + i);
    Vec r = zero();
    switch (op) {
      case Ternary::kAdd:
        r = u + v;
        break;
      case Ternary::kSub:
        r = u - v;
        break;
      case Ternary::kMul:
        r = u * v;
        break;
      case Ternary::kDiv:
        r = u / v;
        break;
      case Ternary::kFma:
        r = fma(u, v, w);
        break;
      case Ternary::kFnma:
        r = fnma(u, v, w);
        break;
      case Ternary::kMax:
        r = max(u, v);
        break;
      case Ternary::kMin:
        r = min(u, v);
        break;
      case Ternary::kSelectGt:
        r = select_gt(u, v, w, set1(7.0f));
        break;
      case Ternary::kKeepNan:
        r = keep_nan(u, v);
        break;
    }
    store(y + i, r);
  }
}

inline int lanes() { return kLanes; }
inline bool has_bf16_dot() { return kHasBf16Dot; }
inline void copy_n(const float* x, float* y, int n) { store_n(y, load_n(x, n), n); }
inline float sum_lanes(const float* x) { return reduce_add(load(x)); }
inline float max_lanes(const float* x) { return reduce_max(load(x)); }

inline void widen_bf16(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, load_bf16(x + i));
}
inline void widen_f16(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, load_f16(x + i));
}
inline void narrow_bf16(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store_bf16(y + i, load(x + i));
}
inline void narrow_f16(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store_f16(y + i, load(x + i));
}
// y[i] = acc[i] + pair . x[2i], x[2i+1]
inline void dot_pairs(const float* acc, uint32_t pair, const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    prefetch(x + 2 * i);
    store(y + i, dot_bf16(load(acc + i), set1_bf16_pair(pair), load_bf16_pairs(x + 2 * i)));
  }
}
inline void split_pairs(const uint16_t* x, float* first, float* second, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    store(first + i, first_of_pairs(load_bf16_pairs(x + 2 * i)));
    store(second + i, second_of_pairs(load_bf16_pairs(x + 2 * i)));
  }
}

inline constexpr TierFunctions kFunctions = {lanes,      has_bf16_dot, apply_unary, apply_ternary, copy_n,
                                             sum_lanes,  max_lanes,    widen_bf16,  widen_f16,     narrow_bf16,
                                             narrow_f16, dot_pairs,    split_pairs};
