// SPDX-License-Identifier: Apache-2.0
// Lanes are channels. One task is one row and kConvBlock channels, over all its tokens: the window is read before
// anything is written, so a row may read and write the same slot.
#include "kernels/simd/vec_recurrent.inl"

inline constexpr int64_t kConvBlock = 128;

// Tokens lie too far apart for the processor to foresee them.
inline constexpr int64_t kConvAhead = 4;

// Channels of one token; `taps[j]` points at the inputs of tap j.
template <int kWidth>
COLUBER_INLINE void conv_token(const CausalConv1dArgs& args, const float* const* taps, int64_t c0, int64_t n,
                               float* y) {
  const int64_t width = kWidth > 0 ? kWidth : args.width;
  for (int64_t c = 0; c < n; c += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, n - c));
    const float* w = args.weight + c0 + c;
    const float* bias = args.bias != nullptr ? args.bias + c0 + c : nullptr;
    Vec sum;
    if (lanes == kLanes) {
      prefetch(taps[width - 1] + kConvAhead * args.x_stride + c);
      prefetch_write(y + kConvAhead * args.y_stride + c);
      sum = bias != nullptr ? load(bias) : zero();
      for (int64_t j = 0; j < width; ++j) sum = fma(load(w + j * args.channels), load(taps[j] + c), sum);
      if (args.silu) sum = siluv(sum);
      store(y + c, sum);
    } else {
      sum = bias != nullptr ? load_n(bias, lanes) : zero();
      for (int64_t j = 0; j < width; ++j)
        sum = fma(load_n(w + j * args.channels, lanes), load_n(taps[j] + c, lanes), sum);
      if (args.silu) sum = siluv(sum);
      store_n(y + c, sum, lanes);
    }
  }
}

template <typename S>
inline void conv_load_window(const CausalConv1dArgs& args, int64_t row, int64_t c0, int64_t n, float* window) {
  const S* source = static_cast<const S*>(args.state.source(row));
  for (int64_t s = 0; s < args.width - 1; ++s) {
    float* out = window + s * kConvBlock;
    if (source == nullptr) {
      std::memset(out, 0, static_cast<size_t>(n) * sizeof(float));
      continue;
    }
    const S* in = source + s * args.channels + c0;
    int64_t c = 0;
    for (; c + kLanes <= n; c += kLanes) store(out + c, load_state(in + c));
    if (c < n) store_n(out + c, load_state_n(in + c, static_cast<int>(n - c)), static_cast<int>(n - c));
  }
}

template <typename S>
inline void conv_store_state(const CausalConv1dArgs& args, int64_t row, int64_t c0, int64_t n, int64_t s,
                             const float* in) {
  S* out = static_cast<S*>(args.state.target(row)) + s * args.channels + c0;
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) store_state(out + c, load(in + c));
  if (c < n) store_state_n(out + c, load_n(in + c, static_cast<int>(n - c)), static_cast<int>(n - c));
}

// Tokens [begin, begin + count) of one row, channels [c0, c0 + n).
template <typename S, int kWidth>
inline void conv_row(const CausalConv1dArgs& args, int64_t row, int64_t begin, int64_t count, int64_t c0, int64_t n) {
  alignas(64) float window[(kMaxConvWidth - 1) * kConvBlock];
  const int64_t kept = args.width - 1;
  conv_load_window<S>(args, row, c0, n, window);
  const float* x = args.x + begin * args.x_stride + c0;
  auto input = [&](int64_t t) -> const float* {
    return t < 0 ? window + (kept + t) * kConvBlock : x + t * args.x_stride;
  };
  // The update may run in place: its token's input moves into the state before the output overwrites it.
  const bool in_place = args.y == args.x;
  if (in_place) {
    for (int64_t s = 0; s < kept; ++s) conv_store_state<S>(args, row, c0, n, s, input(count - kept + s));
  }
  const float* taps[kMaxConvWidth];
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t j = 0; j < args.width; ++j) taps[j] = input(t - kept + j);
    conv_token<kWidth>(args, taps, c0, n, args.y + (begin + t) * args.y_stride + c0);
  }
  if (in_place) return;
  for (int64_t s = 0; s < kept; ++s) conv_store_state<S>(args, row, c0, n, s, input(count - kept + s));
}

template <typename S>
inline void conv_row_by_width(const CausalConv1dArgs& args, int64_t row, int64_t begin, int64_t count, int64_t c0,
                              int64_t n) {
  switch (args.width) {
    case 3:
      return conv_row<S, 3>(args, row, begin, count, c0, n);
    case 4:
      return conv_row<S, 4>(args, row, begin, count, c0, n);
    default:
      return conv_row<S, 0>(args, row, begin, count, c0, n);
  }
}

inline void conv_task(const CausalConv1dArgs& args, int64_t row, int64_t begin, int64_t count, int64_t block) {
  const int64_t c0 = block * kConvBlock;
  const int64_t n = std::min(kConvBlock, args.channels - c0);
  if (args.state.is_null(row)) {
    for (int64_t t = begin; t < begin + count; ++t) {
      std::memset(args.y + t * args.y_stride + c0, 0, static_cast<size_t>(n) * sizeof(float));
    }
    return;
  }
  switch (args.state.dtype) {
    case DType::kBFloat16:
      return conv_row_by_width<StateBf16>(args, row, begin, count, c0, n);
    case DType::kFloat16:
      return conv_row_by_width<StateF16>(args, row, begin, count, c0, n);
    default:
      return conv_row_by_width<float>(args, row, begin, count, c0, n);
  }
}

inline void causal_conv1d(const CausalConv1dArgs& args, ThreadPool& pool) {
  const int64_t blocks = (args.channels + kConvBlock - 1) / kConvBlock;
  pool.parallel_for(args.rows * blocks, 1, [&](int64_t first, int64_t last, int) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / blocks;
      const int64_t begin = args.query_start_loc[row];
      conv_task(args, row, begin, args.query_start_loc[row + 1] - begin, task % blocks);
    }
  });
}

inline void causal_conv1d_update(const CausalConv1dArgs& args, ThreadPool& pool) {
  const int64_t blocks = (args.channels + kConvBlock - 1) / kConvBlock;
  // A block of one token is about 0.1 us: fewer than 16 of them are not worth another thread.
  const int64_t grain = std::max<int64_t>(16, args.rows * blocks / (4 * pool.size()));
  pool.parallel_for(args.rows * blocks, grain, [&](int64_t first, int64_t last, int) {
    for (int64_t task = first; task < last; ++task) conv_task(args, task / blocks, task / blocks, 1, task % blocks);
  });
}
