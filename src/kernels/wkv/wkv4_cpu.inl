// SPDX-License-Identifier: Apache-2.0
// Lanes are channels; a vector's three states stay in registers from a row's first token to its last.
#include "kernels/simd/vec_recurrent.inl"

// Channels of one task: whole cache lines of every token.
inline constexpr int64_t kWkv4Channels = 64;

// The larger of two exponents stands for 1; the other's share is e^-distance: one exponential, not two.
struct Wkv4Shares {
  Vec first, second;
};
COLUBER_INLINE Wkv4Shares wkv4_shares(Vec a, Vec b) {
  const Vec d = a - b;
  const Vec share = expv(min(d, zero() - d));
  const Vec one = set1(1.0f);
  return {select_gt(d, zero(), one, share), select_gt(d, zero(), share, one)};
}

inline void wkv4_channels(const Wkv4Args& args, int64_t row, int64_t begin, int64_t end, int64_t c, int lanes) {
  Vec num = zero(), den = zero(), largest = set1(kWkv4NoMaximum);
  if (!args.numerator.is_fresh(row)) {
    num = load_n(static_cast<const float*>(args.numerator.source(row)) + c, lanes);
    den = load_n(static_cast<const float*>(args.denominator.source(row)) + c, lanes);
    largest = load_n(static_cast<const float*>(args.maximum.source(row)) + c, lanes);
  }
  const Vec decay = load_n(args.decay + c, lanes), first = load_n(args.first + c, lanes);
  for (const RowPart part : RowParts(args.numerator, args.exports, row, begin, end)) {
    for (int64_t t = part.begin; t < part.end; ++t) {
      const int64_t at = t * args.cols + c;
      const Vec k = load_n(args.k + at, lanes), v = load_n(args.v + at, lanes);
      Wkv4Shares share = wkv4_shares(largest, first + k);
      const Vec mean = fma(share.first, num, share.second * v) / fma(share.first, den, share.second);
      store_n(args.y + at, mean * sigmoidv(load_n(args.r + at, lanes)), lanes);
      const Vec decayed = largest + decay;
      share = wkv4_shares(decayed, k);
      num = fma(share.first, num, share.second * v);
      den = fma(share.first, den, share.second);
      largest = max(decayed, k);
    }
    store_n(static_cast<float*>(args.numerator.at(part.slot)) + c, num, lanes);
    store_n(static_cast<float*>(args.denominator.at(part.slot)) + c, den, lanes);
    store_n(static_cast<float*>(args.maximum.at(part.slot)) + c, largest, lanes);
  }
}

inline void wkv4(const Wkv4Args& args, ThreadPool& pool) {
  const int64_t parts = (args.cols + kWkv4Channels - 1) / kWkv4Channels, tasks = args.rows * parts;
  pool.parallel_for(tasks, std::max<int64_t>(1, tasks / (8 * pool.size())), [&](int64_t from, int64_t to, int) {
    const SubnormalsAreZero guard;
    for (int64_t task = from; task < to; ++task) {
      const int64_t row = task / parts, c0 = task % parts * kWkv4Channels;
      const int64_t c1 = std::min(args.cols, c0 + kWkv4Channels);
      const int64_t begin = args.query_start_loc == nullptr ? row : args.query_start_loc[row];
      const int64_t end = args.query_start_loc == nullptr ? row + 1 : args.query_start_loc[row + 1];
      for (int64_t c = c0; c < c1; c += kLanes) {
        const int lanes = static_cast<int>(std::min<int64_t>(kLanes, c1 - c));
        if (!args.numerator.is_null(row)) {
          wkv4_channels(args, row, begin, end, c, lanes);
          continue;
        }
        for (int64_t t = begin; t < end; ++t) store_n(args.y + t * args.cols + c, zero(), lanes);
      }
    }
  });
}
