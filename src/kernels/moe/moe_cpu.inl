// SPDX-License-Identifier: Apache-2.0
// The element-wise parts of a gated MLP and of a layer of experts.

// erfc(t) of t = |x| / sqrt 2: 1 + erf comes from the side where nothing cancels. erfc(t) = exp(-t^2) u P(u), u = 1 /
// (1 + t/2): P is a least-squares fit at Chebyshev nodes of t in [0, 9.4], within 5e-8 relative; beyond, erfc vanishes.
COLUBER_INLINE Vec erfc_of_sizev(Vec x) {
  Vec t = min(set1(9.4f), max(x, zero() - x) * set1(0.70710678f));
  Vec u = set1(1.0f) / fma(t, set1(0.5f), set1(1.0f));
  Vec p = set1(-0.0598980971f);
  p = fma(p, u, set1(0.288439542f));
  p = fma(p, u, set1(-0.494792521f));
  p = fma(p, u, set1(0.286242872f));
  p = fma(p, u, set1(-0.0318766236f));
  p = fma(p, u, set1(0.204735518f));
  p = fma(p, u, set1(0.24263227f));
  p = fma(p, u, set1(0.28243354f));
  p = fma(p, u, set1(0.282083481f));
  return expv(zero() - t * t) * (p * u);
}

COLUBER_INLINE Vec geluv(Vec x) {
  Vec tail = set1(0.5f) * x * erfc_of_sizev(x);
  return keep_nan(x, select_gt(x, zero(), x - tail, tail));
}

COLUBER_INLINE Vec laplacev(Vec x) {
  Vec z = (x - set1(0.707107f)) * set1(1.0f / 0.282095f);
  Vec tail = set1(0.5f) * erfc_of_sizev(z);
  return keep_nan(x, select_gt(z, zero(), set1(1.0f) - tail, tail));
}

// 0.5 (1 + tanh y) = sigmoid(2 y).
COLUBER_INLINE Vec gelu_tanhv(Vec x) {
  Vec inner = fma(x * x, set1(2 * 0.0356774081f), set1(2 * 0.797884561f));
  return x / (set1(1.0f) + expv(zero() - x * inner));
}

// (1 - e) / (1 + e) with e = exp(-2 |x|), which is at most 1.
COLUBER_INLINE Vec tanhv(Vec x) {
  Vec e = expv(set1(-2.0f) * max(x, zero() - x));
  Vec size = (set1(1.0f) - e) / (set1(1.0f) + e);
  return keep_nan(x, select_gt(zero(), x, zero() - size, size));
}

// tanh(log(1 + w)) = (w^2 + 2w) / (w^2 + 2w + 2) with w = exp(x); from 20 on it is 1.
COLUBER_INLINE Vec mishv(Vec x) {
  Vec w = expv(min(set1(20.0f), x));
  Vec above = w * (w + set1(2.0f));
  return keep_nan(x, x * (above / (above + set1(2.0f))));
}

COLUBER_INLINE Vec clampv(Vec x, float low, float high) { return max(set1(low), min(set1(high), x)); }

template <Activation kKind>
COLUBER_INLINE Vec moe_activate(Vec x) {
  if constexpr (kKind == Activation::kSilu) return siluv(x);
  if constexpr (kKind == Activation::kGelu) return geluv(x);
  if constexpr (kKind == Activation::kGeluTanh) return gelu_tanhv(x);
  if constexpr (kKind == Activation::kSigmoid) return sigmoidv(x);
  if constexpr (kKind == Activation::kTanh) return tanhv(x);
  if constexpr (kKind == Activation::kQuickGelu) return x / (set1(1.0f) + expv(set1(-1.702f) * x));
  if constexpr (kKind == Activation::kGelu10) return keep_nan(x, min(set1(10.0f), geluv(x)));
  if constexpr (kKind == Activation::kMish) return mishv(x);
  if constexpr (kKind == Activation::kLaplace) return laplacev(x);
  if constexpr (kKind == Activation::kHardswish)
    return keep_nan(x, x * clampv(x + set1(3.0f), 0.0f, 6.0f) * set1(1.0f / 6.0f));
  if constexpr (kKind == Activation::kRelu6) return keep_nan(x, clampv(x, 0.0f, 6.0f));
  if constexpr (kKind == Activation::kLeakyRelu) return select_gt(zero(), x, x * set1(0.01f), x);
  if constexpr (kKind == Activation::kLinear) return x;
  if constexpr (kKind == Activation::kSqrtSoftplus) return sqrt(softplusv(x));
  if constexpr (kKind == Activation::kEluPlusOne) return select_gt(x, zero(), x + set1(1.0f), expv(x));
  Vec positive = max(zero(), x);  // a NaN, second, is what comes back
  return kKind == Activation::kRelu2 ? positive * positive : positive;
}

// The constants of one call.
struct MoeActivation {
  Vec limit, gate_scale;
};

template <Activation kKind>
COLUBER_INLINE Vec moe_activate_one(Vec gate, const MoeActivation& by) {
  return moe_activate<kKind>(min(by.limit, gate * by.gate_scale));
}

template <Activation kKind>
COLUBER_INLINE Vec moe_activate_pair(Vec gate, Vec up, const MoeActivation& by) {
  return moe_activate_one<kKind>(gate, by) * max(zero() - by.limit, min(by.limit, up));
}

template <Activation kKind>
void moe_activate_span(const ActivateArgs& args, const float* gate, const float* up, float* out, int64_t count) {
  const MoeActivation by{set1(args.limit), set1(args.gate_scale)};
  const int n = static_cast<int>(count % kLanes);
  const int64_t whole = count - n;
  if (up == nullptr) {
    for (int64_t i = 0; i < whole; i += kLanes) store(out + i, moe_activate_one<kKind>(load(gate + i), by));
    if (n > 0) store_n(out + whole, moe_activate_one<kKind>(load_n(gate + whole, n), by), n);
    return;
  }
  for (int64_t i = 0; i < whole; i += kLanes)
    store(out + i, moe_activate_pair<kKind>(load(gate + i), load(up + i), by));
  if (n > 0) store_n(out + whole, moe_activate_pair<kKind>(load_n(gate + whole, n), load_n(up + whole, n), by), n);
}

void moe_activate_part(const ActivateArgs& args, const float* gate, const float* up, float* out, int64_t count) {
  using Span = void (*)(const ActivateArgs&, const float*, const float*, float*, int64_t);
  static constexpr Span kSpans[] = {
      // in the order of Activation
      &moe_activate_span<Activation::kSilu>,       &moe_activate_span<Activation::kGelu>,
      &moe_activate_span<Activation::kGeluTanh>,   &moe_activate_span<Activation::kRelu>,
      &moe_activate_span<Activation::kRelu2>,      &moe_activate_span<Activation::kSigmoid>,
      &moe_activate_span<Activation::kTanh>,       &moe_activate_span<Activation::kQuickGelu>,
      &moe_activate_span<Activation::kGelu10>,     &moe_activate_span<Activation::kMish>,
      &moe_activate_span<Activation::kLaplace>,    &moe_activate_span<Activation::kHardswish>,
      &moe_activate_span<Activation::kRelu6>,      &moe_activate_span<Activation::kLeakyRelu>,
      &moe_activate_span<Activation::kLinear>,     &moe_activate_span<Activation::kSqrtSoftplus>,
      &moe_activate_span<Activation::kEluPlusOne>,
  };
  kSpans[static_cast<int>(args.activation)](args, gate, up, out, count);
}

// One token.
void moe_combine(const CombineExpertsArgs& args, int64_t t) {
  const int32_t* places = args.places + t * args.top_k;
  const float* weights = args.weights + t * args.top_k;
  float* y = args.y + t * args.width;
  int64_t d = 0;
  for (; d + kLanes <= args.width; d += kLanes) {
    Vec sum = zero();
    for (int64_t j = 0; j < args.top_k; ++j) {
      if (places[j] >= 0) sum = fma(set1(weights[j]), load(args.rows + places[j] * args.width + d), sum);
    }
    store(y + d, args.accumulate ? load(y + d) + sum : sum);
  }
  if (d == args.width) return;
  int n = static_cast<int>(args.width - d);
  Vec sum = zero();
  for (int64_t j = 0; j < args.top_k; ++j) {
    if (places[j] >= 0) sum = fma(set1(weights[j]), load_n(args.rows + places[j] * args.width + d, n), sum);
  }
  store_n(y + d, args.accumulate ? load_n(y + d, n) + sum : sum, n);
}
