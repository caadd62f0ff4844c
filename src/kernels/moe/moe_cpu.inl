// SPDX-License-Identifier: Apache-2.0
// The element-wise parts of a gated MLP and of a layer of experts.

// x/2 * (1 + erf(x / sqrt 2)), as x/2 * erfc(t) from the side where nothing cancels. erfc(t) = exp(-t^2) u P(u), u = 1
// / (1 + t/2): P is a least-squares fit at Chebyshev nodes of t in [0, 9.4], within 5e-8 relative; beyond, erfc
// vanishes.
COLUBER_INLINE Vec geluv(Vec x) {
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
  Vec tail = set1(0.5f) * x * (expv(zero() - t * t) * (p * u));
  return keep_nan(x, select_gt(x, zero(), x - tail, tail));
}

// 0.5 (1 + tanh y) = sigmoid(2 y).
COLUBER_INLINE Vec gelu_tanhv(Vec x) {
  Vec inner = fma(x * x, set1(2 * 0.0356774081f), set1(2 * 0.797884561f));
  return x / (set1(1.0f) + expv(zero() - x * inner));
}

template <Activation kKind>
COLUBER_INLINE Vec moe_activate(Vec x) {
  if constexpr (kKind == Activation::kSilu) return siluv(x);
  if constexpr (kKind == Activation::kGelu) return geluv(x);
  if constexpr (kKind == Activation::kGeluTanh) return gelu_tanhv(x);
  if constexpr (kKind == Activation::kSigmoid) return sigmoidv(x);
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
  switch (args.activation) {
    case Activation::kSilu:
      return moe_activate_span<Activation::kSilu>(args, gate, up, out, count);
    case Activation::kGelu:
      return moe_activate_span<Activation::kGelu>(args, gate, up, out, count);
    case Activation::kGeluTanh:
      return moe_activate_span<Activation::kGeluTanh>(args, gate, up, out, count);
    case Activation::kRelu:
      return moe_activate_span<Activation::kRelu>(args, gate, up, out, count);
    case Activation::kRelu2:
      return moe_activate_span<Activation::kRelu2>(args, gate, up, out, count);
    case Activation::kSigmoid:
      return moe_activate_span<Activation::kSigmoid>(args, gate, up, out, count);
  }
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
