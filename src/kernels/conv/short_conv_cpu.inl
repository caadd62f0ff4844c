// SPDX-License-Identifier: Apache-2.0
// Lanes are channels. One task is one row and kShortConvBlock channels over all its tokens; the last W values of u live
// in a ring of rows, u of position p (the window's first is 0) in row p % W.
#include "kernels/simd/vec_recurrent.inl"

inline constexpr int64_t kShortConvBlock = 128;
inline constexpr int64_t kShortConvAhead = 4;

template <bool kFull>
COLUBER_INLINE Vec short_conv_load(const float* p, int lanes) {
  if constexpr (kFull) return load(p);
  return load_n(p, lanes);
}

// One vector of channels of token t, which lies at position `p` of the ring.
template <bool kFull>
COLUBER_INLINE void short_conv_lanes(const ShortConvArgs& args, int64_t t, int64_t p, int64_t c0, int64_t c,
                                     float* ring, int lanes) {
  const int64_t place = t * args.in_stride + c0 + c;
  const Vec u = short_conv_load<kFull>(args.b + place, lanes) * short_conv_load<kFull>(args.x + place, lanes);
  const Vec gate = short_conv_load<kFull>(args.c_gate + place, lanes);
  store(ring + p % args.width * kShortConvBlock + c, u);
  Vec sum = args.bias != nullptr ? short_conv_load<kFull>(args.bias + c0 + c, lanes) : zero();
  int64_t row = (p + 1) % args.width;
  for (int64_t j = 0; j < args.width; ++j) {
    const Vec weight = short_conv_load<kFull>(args.weight + j * args.channels + c0 + c, lanes);
    sum = fma(weight, load(ring + row * kShortConvBlock + c), sum);
    row = row + 1 == args.width ? 0 : row + 1;
  }
  float* y = args.y + t * args.y_stride + c0 + c;
  if constexpr (kFull) {
    store(y, gate * sum);
  } else {
    store_n(y, gate * sum, lanes);
  }
}

template <typename S>
inline void short_conv_row(const ShortConvArgs& args, int64_t row, int64_t begin, int64_t end, int64_t c0, int64_t n) {
  alignas(64) float ring[kMaxConvWidth * kShortConvBlock];
  const int64_t kept = args.width - 1;
  const S* source = static_cast<const S*>(args.state.source(row));
  for (int64_t s = 0; s < kept; ++s) {
    for (int64_t c = 0; c < n; c += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, n - c));
      store(ring + s * kShortConvBlock + c,
            source == nullptr ? zero() : load_state_n(source + s * args.channels + c0 + c, lanes));
    }
  }
  for (int64_t t = begin; t < end; ++t) {
    const int64_t p = kept + t - begin, ahead = (t + kShortConvAhead) * args.in_stride + c0;
    int64_t c = 0;
    for (; c + kLanes <= n; c += kLanes) {
      prefetch(args.b + ahead + c);
      prefetch(args.x + ahead + c);
      prefetch(args.c_gate + ahead + c);
      short_conv_lanes<true>(args, t, p, c0, c, ring, kLanes);
    }
    if (c < n) short_conv_lanes<false>(args, t, p, c0, c, ring, static_cast<int>(n - c));
  }
  S* target = static_cast<S*>(args.state.target(row));
  for (int64_t s = 0; s < kept; ++s) {
    const float* in = ring + (end - begin + s) % args.width * kShortConvBlock;
    for (int64_t c = 0; c < n; c += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, n - c));
      store_state_n(target + s * args.channels + c0 + c, load(in + c), lanes);
    }
  }
}

inline void short_conv_task(const ShortConvArgs& args, int64_t row, int64_t begin, int64_t end, int64_t block) {
  const int64_t c0 = block * kShortConvBlock;
  const int64_t n = std::min(kShortConvBlock, args.channels - c0);
  if (args.state.is_null(row)) {
    for (int64_t t = begin; t < end; ++t) {
      std::memset(args.y + t * args.y_stride + c0, 0, static_cast<size_t>(n) * sizeof(float));
    }
    return;
  }
  switch (args.state.dtype) {
    case DType::kBFloat16:
      return short_conv_row<StateBf16>(args, row, begin, end, c0, n);
    case DType::kFloat16:
      return short_conv_row<StateF16>(args, row, begin, end, c0, n);
    default:
      return short_conv_row<float>(args, row, begin, end, c0, n);
  }
}

inline void short_conv(const ShortConvArgs& args, ThreadPool& pool) {
  const int64_t blocks = (args.channels + kShortConvBlock - 1) / kShortConvBlock;
  pool.parallel_for(args.rows * blocks, 1, [&](int64_t first, int64_t last, int) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / blocks;
      short_conv_task(args, row, args.query_start_loc[row], args.query_start_loc[row + 1], task % blocks);
    }
  });
}

inline void short_conv_update(const ShortConvArgs& args, ThreadPool& pool) {
  const int64_t blocks = (args.channels + kShortConvBlock - 1) / kShortConvBlock;
  // A block of one token is about 0.1 us: fewer than 16 of them are not worth another thread.
  const int64_t grain = std::max<int64_t>(16, args.rows * blocks / (4 * pool.size()));
  pool.parallel_for(args.rows * blocks, grain, [&](int64_t first, int64_t last, int) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / blocks;
      short_conv_task(args, row, row, row + 1, task % blocks);
    }
  });
}
