// SPDX-License-Identifier: Apache-2.0
// Lanes are channels. One task is one row and kRgLruChannels channels: a few cache lines of a token, and a state that
// stays in the first-level cache over all tokens.
#include "kernels/simd/vec_recurrent.inl"

inline constexpr int64_t kRgLruChannels = 64;
// Tokens whose lines are fetched ahead: rows lie kilobytes apart, and no processor follows them by itself. (340 to 430
// million channel steps a second on one core, a prefill of 512 tokens of 2560 channels.)
inline constexpr int64_t kRgLruAhead = 8;

// (1 - e^-u) / u for 0 <= u <= 0.5: Taylor's series, 1.1e-8 at its end.
COLUBER_INLINE Vec rg_lru_small_decay(Vec u) {
  Vec p = set1(-1.0f / 40320.0f);
  p = fma(p, u, set1(1.0f / 5040.0f));
  p = fma(p, u, set1(-1.0f / 720.0f));
  p = fma(p, u, set1(1.0f / 120.0f));
  p = fma(p, u, set1(-1.0f / 24.0f));
  p = fma(p, u, set1(1.0f / 6.0f));
  p = fma(p, u, set1(-0.5f));
  return fma(p, u, set1(1.0f));
}

struct RgLruTerms {
  Vec decay, input;
};

// a and sqrt(1 - a^2) * u of one token; `first`: 0 and u.
COLUBER_INLINE RgLruTerms rg_lru_terms(Vec x, Vec input_gate, Vec recurrent_gate, Vec log_decay, bool first) {
  const Vec input = sigmoidv(input_gate) * x;
  if (first) return {zero(), input};
  const Vec log_a = log_decay * sigmoidv(recurrent_gate);
  const Vec a = expv(log_a), u = set1(-2.0f) * log_a;
  const Vec rest = select_gt(u, set1(0.5f), fnma(a, a, set1(1.0f)), u * rg_lru_small_decay(u));
  return {a, sqrt(rest) * input};
}

COLUBER_INLINE Vec rg_lru_load(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }

// Channels [c0, c1) of tokens [begin, end), whose state is `h`; `starts`: the first of them begins its sequence.
COLUBER_INLINE void rg_lru_tokens(const RgLruArgs& args, int64_t begin, int64_t end, int64_t c0, int64_t c1,
                                  bool starts, float* h) {
  for (int64_t t = begin; t < end; ++t) {
    const bool first = starts && t == begin;
    for (int64_t c = c0; c < c1; c += kLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kLanes, c1 - c));
      const int64_t gate = t * args.gate_stride + c;
      prefetch(args.x + (t + kRgLruAhead) * args.x_stride + c);
      prefetch(args.input_gate + gate + kRgLruAhead * args.gate_stride);
      prefetch(args.recurrent_gate + gate + kRgLruAhead * args.gate_stride);
      const RgLruTerms terms =
          rg_lru_terms(rg_lru_load(args.x + t * args.x_stride + c, n), rg_lru_load(args.input_gate + gate, n),
                       rg_lru_load(args.recurrent_gate + gate, n), rg_lru_load(args.log_decay + c, n), first);
      const Vec next = fma(terms.decay, load(h + (c - c0)), terms.input);
      store(h + (c - c0), next);
      store_n(args.y + t * args.y_stride + c, next, n);
    }
  }
}

template <typename S>
inline void rg_lru_channels(const RgLruArgs& args, int64_t row, int64_t begin, int64_t end, int64_t c0, int64_t c1) {
  if (begin == end) return;
  alignas(64) float h[kRgLruChannels];
  const S* source = static_cast<const S*>(args.state.source(row));
  for (int64_t c = c0; c < c1; c += kLanes) {
    const int n = static_cast<int>(std::min<int64_t>(kLanes, c1 - c));
    store(h + (c - c0), source == nullptr ? zero() : load_state_n(source + c, n));
  }
  for (const RowPart part : RowParts(args.state, args.exports, row, begin, end)) {
    rg_lru_tokens(args, part.begin, part.end, c0, c1, source == nullptr && part.begin == begin, h);
    S* target = static_cast<S*>(args.state.at(part.slot));
    for (int64_t c = c0; c < c1; c += kLanes)
      store_state_n(target + c, load(h + (c - c0)), static_cast<int>(std::min<int64_t>(kLanes, c1 - c)));
  }
}

void rg_lru_task(const RgLruArgs& args, int64_t row, int64_t begin, int64_t end, int64_t c0, int64_t c1) {
  if (args.state.is_null(row)) {
    for (int64_t t = begin; t < end; ++t)
      std::fill(args.y + t * args.y_stride + c0, args.y + t * args.y_stride + c1, 0.0f);
    return;
  }
  by_state_type(args.state.dtype,
                [&](auto element) { rg_lru_channels<decltype(element)>(args, row, begin, end, c0, c1); });
}
