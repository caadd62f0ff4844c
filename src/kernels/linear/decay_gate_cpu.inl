// SPDX-License-Identifier: Apache-2.0

// log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|)); the rounding of 1 + t is put back as in softplusv.
COLUBER_INLINE Vec log_sigmoidv(Vec x) {
  const Vec low = min(x, zero());
  const Vec t = expv(low + low - x);
  const Vec u = set1(1.0f) + t;
  return low - (logv(u) + (t - (u - set1(1.0f))) / u);
}

inline void log_sigmoid_decay(const LogSigmoidDecayArgs& args, ThreadPool& pool) {
  const Vec inverse = set1(1.0f / args.normalizer), least = set1(args.clamp_min);
  pool.parallel_for(args.count, 4096, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; i += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, last - i));
      const Vec log = log_sigmoidv(load_n(args.x + i, lanes)) * inverse;
      store_n(args.a + i, expv(max(least, log)), lanes);
    }
  });
}

inline void bounded_decay(const BoundedDecayArgs& args, ThreadPool& pool) {
  const int64_t grain = std::max<int64_t>(1, 4096 / args.channels);
  pool.parallel_for(args.tokens, grain, [&](int64_t first, int64_t last, int) {
    for (int64_t t = first; t < last; ++t) {
      const int64_t row = t * args.channels;
      for (int64_t c = 0; c < args.channels; c += kLanes) {
        const int lanes = static_cast<int>(std::min<int64_t>(kLanes, args.channels - c));
        const Vec x = load_n(args.x + row + c, lanes);
        const Vec lower = args.lower == nullptr ? zero() : load_n(args.lower + c, lanes);
        const Vec rest = set1(1.0f) - lower;
        store_n(args.key + row + c, rest * sigmoidv(zero() - x), lanes);
        store_n(args.a + row + c, fma(rest, sigmoidv(x), lower), lanes);
      }
    }
  });
}
