// SPDX-License-Identifier: Apache-2.0
// Lanes are channels: one lane group is kLanes channels of one block of 16, its state kept as [N][kLanes]. One task is
// one row and kScanChannels channels; tokens go in tiles, so that the rows of x, delta and z are read a few cache lines
// at a time.
#include "kernels/simd/vec_recurrent.inl"

inline constexpr int64_t kScanChannels = 64;
inline constexpr int64_t kScanTile = 16;
// Per (lane group, n): 12 operations of exp2_decay and 4 of the recurrence, 8 cycles at two ports.

// A group of at most kLanes channels that lie together in one block of 16.
struct ScanGroup {
  int64_t channel;  // the first
  int lanes;
  int64_t width;   // of its block: distance between n's in the state and in `a`
  int64_t offset;  // of its first element in the state and in `a`
};

COLUBER_INLINE ScanGroup scan_group(const SelectiveScanArgs& args, int64_t channel) {
  const int64_t first = channel / 16 * 16;
  const int64_t width = std::min<int64_t>(16, args.channels - first);
  const int64_t lanes = std::min<int64_t>(kLanes, first + width - channel);
  return {channel, static_cast<int>(lanes), width, first * args.state_size + (channel - first)};
}

template <bool kFull, typename S>
COLUBER_INLINE Vec scan_load(const S* p, int lanes) {
  if constexpr (kFull) return load_state(p);
  return load_state_n(p, lanes);
}
template <bool kFull, typename S>
COLUBER_INLINE void scan_store(S* p, Vec v, int lanes) {
  if constexpr (kFull) {
    store_state(p, v);
  } else {
    store_state_n(p, v, lanes);
  }
}

// One token of one group: h_in -> h_out over all n; the sum of c * h.
template <bool kFull, typename In, typename Out>
COLUBER_INLINE Vec scan_recur(const In* h_in, int64_t in_width, Out* h_out, int64_t out_width, const float* a,
                              int64_t a_width, const float* b, const float* c, Vec dt, Vec dtx, int64_t state_size,
                              int lanes) {
  Vec sum[2] = {zero(), zero()};
  int64_t n = 0;
  for (; n + 2 <= state_size; n += 2) {
    for (int u = 0; u < 2; ++u) {
      const int64_t m = n + u;
      const Vec decay = exp2_decay(dt * scan_load<kFull>(a + m * a_width, lanes));
      const Vec h = fma(decay, scan_load<kFull>(h_in + m * in_width, lanes), dtx * set1(b[m]));
      scan_store<kFull>(h_out + m * out_width, h, lanes);
      sum[u] = fma(h, set1(c[m]), sum[u]);
    }
  }
  if (n < state_size) {
    const Vec decay = exp2_decay(dt * scan_load<kFull>(a + n * a_width, lanes));
    const Vec h = fma(decay, scan_load<kFull>(h_in + n * in_width, lanes), dtx * set1(b[n]));
    scan_store<kFull>(h_out + n * out_width, h, lanes);
    sum[0] = fma(h, set1(c[n]), sum[0]);
  }
  return sum[0] + sum[1];
}

template <bool kFull, typename In, typename Out>
COLUBER_INLINE void scan_token(const SelectiveScanArgs& args, const ScanGroup& g, int64_t t, const In* h_in,
                               int64_t in_width, Out* h_out, int64_t out_width) {
  const Vec x = scan_load<kFull>(args.x + t * args.x_stride + g.channel, g.lanes);
  Vec dt = scan_load<kFull>(args.delta + t * args.delta_stride + g.channel, g.lanes);
  if (args.delta_bias != nullptr) dt = dt + scan_load<kFull>(args.delta_bias + g.channel, g.lanes);
  dt = softplusv(dt);
  Vec y = scan_recur<kFull>(h_in, in_width, h_out, out_width, args.a + g.offset, g.width, args.b + t * args.b_stride,
                            args.c + t * args.c_stride, dt, dt * x, args.state_size, g.lanes);
  if (args.d != nullptr) y = fma(scan_load<kFull>(args.d + g.channel, g.lanes), x, y);
  if (args.z != nullptr) y = y * siluv(scan_load<kFull>(args.z + t * args.z_stride + g.channel, g.lanes));
  scan_store<kFull>(args.y + t * args.y_stride + g.channel, y, g.lanes);
}

// A tile of tokens of one group, its state in `h` [N][kLanes]. Step sizes and gates of the whole tile are computed
// apart from the recurrence: their long chains (exp, log, two divisions) would stall it at every token. A line of a
// token's row holds one group and the rows lie far apart, so the lines of the next tile are fetched ahead.
template <bool kFull>
inline void scan_tile(const SelectiveScanArgs& args, const ScanGroup& g, int64_t begin, int64_t end, float* h,
                      int64_t next_token, int64_t next_channel) {
  alignas(64) float step[kScanTile * kLanes], input[kScanTile * kLanes], sum[kScanTile * kLanes];
  const int64_t count = end - begin;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = begin + i;
    Vec dt = scan_load<kFull>(args.delta + t * args.delta_stride + g.channel, g.lanes);
    if (args.delta_bias != nullptr) dt = dt + scan_load<kFull>(args.delta_bias + g.channel, g.lanes);
    dt = softplusv(dt);
    store(step + i * kLanes, dt);
    store(input + i * kLanes, dt * scan_load<kFull>(args.x + t * args.x_stride + g.channel, g.lanes));
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = begin + i;
    prefetch(args.x + (next_token + i) * args.x_stride + next_channel);
    prefetch(args.delta + (next_token + i) * args.delta_stride + next_channel);
    if (args.z != nullptr) prefetch(args.z + (next_token + i) * args.z_stride + next_channel);
    store(sum + i * kLanes,
          scan_recur<kFull>(h, kLanes, h, kLanes, args.a + g.offset, g.width, args.b + t * args.b_stride,
                            args.c + t * args.c_stride, load(step + i * kLanes), load(input + i * kLanes),
                            args.state_size, g.lanes));
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = begin + i;
    Vec y = load(sum + i * kLanes);
    if (args.d != nullptr) {
      const Vec x = scan_load<kFull>(args.x + t * args.x_stride + g.channel, g.lanes);
      y = fma(scan_load<kFull>(args.d + g.channel, g.lanes), x, y);
    }
    if (args.z != nullptr) y = y * siluv(scan_load<kFull>(args.z + t * args.z_stride + g.channel, g.lanes));
    scan_store<kFull>(args.y + t * args.y_stride + g.channel, y, g.lanes);
  }
}

template <typename S>
inline void scan_load_group(const SelectiveScanArgs& args, const ScanGroup& g, const S* source, float* h) {
  for (int64_t n = 0; n < args.state_size; ++n) {
    store(h + n * kLanes, source == nullptr ? zero() : load_state_n(source + g.offset + n * g.width, g.lanes));
  }
}

template <typename S>
inline void scan_store_groups(const SelectiveScanArgs& args, const ScanGroup* groups, int64_t count,
                              const float* states, void* slot) {
  for (int64_t i = 0; i < count; ++i) {
    const ScanGroup& g = groups[i];
    const float* h = states + i * args.state_size * kLanes;
    S* out = static_cast<S*>(slot) + g.offset;
    for (int64_t n = 0; n < args.state_size; ++n) store_state_n(out + n * g.width, load(h + n * kLanes), g.lanes);
  }
}

// Channels [c0, c1) of one row, tokens [begin, end).
template <typename S>
inline void scan_row(const SelectiveScanArgs& args, int64_t row, int64_t begin, int64_t end, int64_t c0, int64_t c1) {
  alignas(64) float states[kScanChannels * kMaxSelectiveScanState];
  ScanGroup groups[kScanChannels / kLanes];
  const S* source = static_cast<const S*>(args.state.source(row));
  int64_t count = 0;
  for (int64_t c = c0; c < c1; c += groups[count++].lanes) {
    groups[count] = scan_group(args, c);
    scan_load_group(args, groups[count], source, states + count * args.state_size * kLanes);
  }
  for (const RowPart part : RowParts(args.state, args.exports, row, begin, end)) {
    for (int64_t tile = part.begin, tile_end = part.begin; tile < part.end; tile = tile_end) {
      tile_end = std::min(part.end, tile + kScanTile);
      for (int64_t i = 0; i < count; ++i) {
        const ScanGroup& g = groups[i];
        float* h = states + i * args.state_size * kLanes;
        const bool last = i + 1 == count;
        const int64_t next_token = last ? tile_end : tile;
        const int64_t next_channel = last ? c0 : groups[i + 1].channel;
        if (g.lanes == kLanes) {
          scan_tile<true>(args, g, tile, tile_end, h, next_token, next_channel);
        } else {
          // The buffer is kLanes wide, `a` is not: masked lanes stay zero.
          scan_tile<false>(args, g, tile, tile_end, h, next_token, next_channel);
        }
      }
    }
    scan_store_groups<S>(args, groups, count, states, args.state.at(part.slot));
  }
}

template <typename S>
inline void scan_step(const SelectiveScanArgs& args, int64_t row, int64_t c0, int64_t c1) {
  alignas(64) static const float kZeros[16] = {};
  const S* source = static_cast<const S*>(args.state.source(row));
  S* target = static_cast<S*>(args.state.target(row));
  for (int64_t c = c0; c < c1;) {
    const ScanGroup g = scan_group(args, c);
    S* out = target + g.offset;
    if (source != nullptr && g.lanes == kLanes) {
      scan_token<true>(args, g, row, source + g.offset, g.width, out, g.width);
    } else if (source != nullptr) {
      scan_token<false>(args, g, row, source + g.offset, g.width, out, g.width);
    } else {
      scan_token<false>(args, g, row, kZeros, 0, out, g.width);
    }
    c += g.lanes;
  }
}

template <typename Work>
COLUBER_INLINE void scan_by_state_type(DType dtype, Work&& work) {
  switch (dtype) {
    case DType::kBFloat16:
      return work(StateBf16{});
    case DType::kFloat16:
      return work(StateF16{});
    default:
      return work(float{});
  }
}

inline void scan_zero_rows(const SelectiveScanArgs& args, int64_t begin, int64_t end, int64_t c0, int64_t c1) {
  for (int64_t t = begin; t < end; ++t) {
    std::memset(args.y + t * args.y_stride + c0, 0, static_cast<size_t>(c1 - c0) * sizeof(float));
  }
}

inline void selective_scan(const SelectiveScanArgs& args, ThreadPool& pool) {
  const int64_t blocks = (args.channels + kScanChannels - 1) / kScanChannels;
  pool.parallel_for(args.rows * blocks, 1, [&](int64_t first, int64_t last, int) {
    const SubnormalsAreZero guard;
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / blocks, c0 = task % blocks * kScanChannels;
      const int64_t c1 = std::min(args.channels, c0 + kScanChannels);
      const int64_t begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
      if (args.state.is_null(row)) {
        scan_zero_rows(args, begin, end, c0, c1);
      } else {
        scan_by_state_type(args.state.dtype,
                           [&](auto type) { scan_row<decltype(type)>(args, row, begin, end, c0, c1); });
      }
    }
  });
}

inline void selective_state_update(const SelectiveScanArgs& args, ThreadPool& pool) {
  const int64_t blocks = (args.channels + kScanChannels - 1) / kScanChannels;
  const int64_t grain = std::max<int64_t>(2, args.rows * blocks / (4 * pool.size()));
  pool.parallel_for(args.rows * blocks, grain, [&](int64_t first, int64_t last, int) {
    const SubnormalsAreZero guard;
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / blocks, c0 = task % blocks * kScanChannels;
      const int64_t c1 = std::min(args.channels, c0 + kScanChannels);
      if (args.state.is_null(row)) {
        scan_zero_rows(args, row, row + 1, c0, c1);
      } else {
        scan_by_state_type(args.state.dtype, [&](auto type) { scan_step<decltype(type)>(args, row, c0, c1); });
      }
    }
  });
}
