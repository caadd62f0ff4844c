// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one attention tile. A score is one chain of multiply-adds over the head dim in ascending order
// (keys lie in lanes, transposed once a block), a value one over the keys (the head dim lies in lanes): neither depends
// on the tile around it.

#include "kernels/simd/scaled_rows.inl"

// A kLanes x kLanes square is transposed in log2(kLanes) steps: step S exchanges the lanes whose bit S differs from the
// row's.
template <int S, int... I>
COLUBER_INLINE void attention_exchange(Vec& a, Vec& b, std::integer_sequence<int, I...>) {
  auto low = __builtin_shufflevector(a.v, b.v, ((I & S) != 0 ? (I ^ S) + kLanes : I)...);
  auto high = __builtin_shufflevector(a.v, b.v, ((I & S) != 0 ? I + kLanes : (I ^ S))...);
  a.v = low;
  b.v = high;
}

template <int S>
COLUBER_INLINE void attention_transpose_step(Vec* v) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & S) == 0) attention_exchange<S>(v[i], v[i + S], std::make_integer_sequence<int, kLanes>{});
  }
}

COLUBER_INLINE void attention_transpose(Vec* v) {
  attention_transpose_step<1>(v);
  attention_transpose_step<2>(v);
  attention_transpose_step<4>(v);
  if constexpr (kLanes == 16) attention_transpose_step<kLanes / 2>(v);
}

template <DType kType>
COLUBER_INLINE Vec attention_load(const std::byte* row, int64_t d) {
  if constexpr (kType == DType::kFloat32) {
    return load(reinterpret_cast<const float*>(row) + d);
  } else {
    const auto* half = reinterpret_cast<const uint16_t*>(row) + d;
    if constexpr (kType == DType::kBFloat16) return load_bf16(half);
    return load_f16(half);
  }
}

template <DType kType>
COLUBER_INLINE Vec attention_load_n(const std::byte* row, int64_t d, int n) {
  if constexpr (kType == DType::kFloat32) {
    return load_n(reinterpret_cast<const float*>(row) + d, n);
  } else {
    uint16_t half[kLanes] = {};
    std::memcpy(half, reinterpret_cast<const uint16_t*>(row) + d, static_cast<size_t>(n) * sizeof(uint16_t));
    return attention_load<kType>(reinterpret_cast<const std::byte*>(half), 0);
  }
}

// As attention_rows, for the numbers of keys that a query has chosen.
inline int64_t attention_chosen_rows(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t begin,
                                     int64_t count, const std::byte** rows) {
  const KvPages& kv = args.kv;
  const int64_t step = kv.token_bytes(), head = tile.kv_head * kv.head_bytes();
  const int64_t width = args.selection.block_size;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = tile.blocks[(begin + i) / width] * width + (begin + i) % width;
    const int32_t id = args.block_table.at(tile.row, position / kv.block_size);
    if (id <= kNullBlockId) return i;
    rows[i] = kv.page(id) + head + position % kv.block_size * step;
  }
  return count;
}

// Rows of K of one head at positions [begin, begin + count); those of V lie `plane` bytes behind. Fewer where a null
// page comes; returns how many.
inline int64_t attention_rows(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t begin, int64_t count,
                              const std::byte** rows) {
  if (tile.blocks != nullptr) return attention_chosen_rows(args, tile, begin, count, rows);
  const KvPages& kv = args.kv;
  const int64_t step = kv.token_bytes(), head = tile.kv_head * kv.head_bytes();
  int64_t column = begin / kv.block_size, offset = begin % kv.block_size;
  for (int64_t i = 0; i < count; ++column, offset = 0) {
    const int32_t id = args.block_table.at(tile.row, column);
    if (id <= kNullBlockId) return i;
    const std::byte* row = kv.page(id) + head + offset * step;
    for (; offset < kv.block_size && i < count; ++offset, ++i, row += step) rows[i] = row;
  }
  return count;
}

COLUBER_INLINE void attention_fetch(const std::byte* row, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += 64) prefetch(row + byte);
}

// The block's keys with kLanes of them in a vector, and their values fetched ahead: these come next.
template <DType kType>
inline void attention_transpose_keys(const std::byte* const* rows, int64_t count, int64_t head_dim, int64_t plane_bytes,
                                     float* keys) {
  const int64_t row_bytes = head_dim * (kType == DType::kFloat32 ? 4 : 2);
  for (int64_t first = 0; first < count; first += kLanes) {
    const std::byte* group[kLanes];  // the last row again where there are fewer: what it gives is never read
    for (int64_t i = 0; i < kLanes; ++i) {
      group[i] = rows[std::min(first + i, count - 1)];
      attention_fetch(group[i] + plane_bytes, row_bytes);
    }
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kLanes, head_dim - d));
      Vec square[kLanes];
      if (n == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) square[i] = attention_load<kType>(group[i], d);
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) square[i] = attention_load_n<kType>(group[i], d, n);
      }
      attention_transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i < n) store(keys + (d + i) * kKeyBlock + first, square[i]);
      }
    }
  }
}

// A row of codes and its scale behind them.
template <DType kType>
inline void attention_decode_row(const std::byte* row, int64_t head_dim, float* out) {
  float scale;
  std::memcpy(&scale, row + head_dim, sizeof(scale));
  if constexpr (kType == DType::kInt8)
    scaled_row_decode(reinterpret_cast<const int8_t*>(row), head_dim, scale, out);
  else
    scaled_row_decode_e4m3(reinterpret_cast<const uint8_t*>(row), head_dim, scale, out);
}

// Pointers to float32 rows of the values: into the pages, or widened copies. The next block's keys are fetched ahead.
template <DType kType>
inline void attention_widen_values(const std::byte* const* rows, int64_t count, int64_t head_dim, int64_t plane_bytes,
                                   const std::byte* const* next, int64_t num_next, const AttentionScratch& scratch) {
  const int64_t row_bytes = head_dim * (kType == DType::kFloat32 ? 4 : has_row_scale(kType) ? 1 : 2);
  for (int64_t i = 0; i < count; ++i) {
    if (i < num_next) attention_fetch(next[i], row_bytes);
    if constexpr (kType == DType::kFloat32) {
      scratch.rows[i] = reinterpret_cast<const float*>(rows[i] + plane_bytes);
    } else if constexpr (has_row_scale(kType)) {
      scratch.rows[i] = scratch.widened + i * head_dim;
      attention_decode_row<kType>(rows[i] + plane_bytes, head_dim, scratch.widened + i * head_dim);
    } else {
      float* wide = scratch.widened + i * head_dim;
      scratch.rows[i] = wide;
      int64_t d = 0;
      for (; d + kLanes <= head_dim; d += kLanes) store(wide + d, attention_load<kType>(rows[i] + plane_bytes, d));
      if (d < head_dim) {
        const int n = static_cast<int>(head_dim - d);
        store_n(wide + d, attention_load_n<kType>(rows[i] + plane_bytes, d, n), n);
      }
    }
  }
}

// scores[i][j] = scale * q[i] . key j, for Q vectors and the C vectors of keys from `first` on.
template <int Q, int C>
COLUBER_INLINE void attention_score_tile(const float* const* q, const float* keys, int64_t first, int64_t head_dim,
                                         float scale, float* scores) {
  Vec sums[Q][C];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[i][c] = zero();
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    Vec k[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) k[c] = load(keys + d * kKeyBlock + first + c * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      Vec x = set1(q[i][d]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[i][c] = fma(x, k[c], sums[i][c]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(scores + i * kKeyBlock + first + c * kLanes, sums[i][c] * set1(scale));
  }
}

// Vectors of keys or columns beside Q rows that fill half of the registers with sums.
template <int Q>
inline constexpr int kAttentionColumns = kRegisters / (2 * Q) < 8 ? kRegisters / (2 * Q) : 8;

template <int Q>
inline void attention_scores(const float* const* q, int64_t count, int64_t head_dim, float scale, const float* keys,
                             float* scores) {
  constexpr int kWide =
      kAttentionColumns<Q> * kLanes <= kKeyBlock ? kAttentionColumns<Q> : static_cast<int>(kKeyBlock) / kLanes;
  for (int64_t first = 0; first < count; first += kWide * kLanes) {
    attention_score_tile<Q, kWide>(q, keys, first, head_dim, scale, scores);
  }
}

// Scores to weights, the running maximum and sum brought up to date, the values so far rescaled.
inline void attention_weigh(int64_t n, int64_t head_dim, float* scores, float* maximum, float* sum, float* values) {
  for (int64_t j = n; j < kKeyBlock; ++j) scores[j] = -__builtin_inff();
  Vec top = load(scores);
  for (int64_t j = kLanes; j < kKeyBlock; j += kLanes) top = max(top, load(scores + j));
  float new_maximum = std::max(*maximum, reduce_max(top));
  Vec shift = set1(new_maximum);
  Vec total = zero();
  for (int64_t j = 0; j < kKeyBlock; j += kLanes) {
    Vec p = expv(load(scores + j) - shift);
    store(scores + j, p);
    total = total + p;
  }
  float factor;
  store_n(&factor, expv(set1(*maximum) - shift), 1);
  *sum = *sum * factor + reduce_add(total);
  if (*maximum != new_maximum) {
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(values + d, load(values + d) * set1(factor));
    if (d < head_dim) {
      int tail = static_cast<int>(head_dim - d);
      store_n(values + d, load_n(values + d, tail) * set1(factor), tail);
    }
  }
  *maximum = new_maximum;
}

// values[i] += sum_{from <= j < to} weight[i][j] row[j], for Q vectors and C vectors' width of columns from d on.
template <int Q, int C>
COLUBER_INLINE void attention_value_tile(const float* const* rows, int64_t from, int64_t to, const float* weights,
                                         float* values, int64_t head_dim, int64_t d) {
  Vec sums[Q][C];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[i][c] = load(values + i * head_dim + d + c * kLanes);
  }
  for (int64_t j = from; j < to; ++j) {
    Vec row[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) row[c] = load(rows[j] + d + c * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      Vec w = set1(weights[i * kKeyBlock + j]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[i][c] = fma(w, row[c], sums[i][c]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(values + i * head_dim + d + c * kLanes, sums[i][c]);
  }
}

template <int Q>
inline void attention_add_values(const float* const* rows, int64_t from, int64_t to, const float* weights,
                                 float* values, int64_t head_dim) {
  if (from >= to) return;
  constexpr int kWide = kAttentionColumns<Q>;
  int64_t d = 0;
  for (; d + kWide * kLanes <= head_dim; d += kWide * kLanes) {
    attention_value_tile<Q, kWide>(rows, from, to, weights, values, head_dim, d);
  }
  if constexpr (kWide > 4) {
    for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) {
      attention_value_tile<Q, 4>(rows, from, to, weights, values, head_dim, d);
    }
  }
  for (; d + kLanes <= head_dim; d += kLanes) {
    attention_value_tile<Q, 1>(rows, from, to, weights, values, head_dim, d);
  }
  if (d == head_dim) return;
  const int n = static_cast<int>(head_dim - d);
  for (int i = 0; i < Q; ++i) {
    Vec sum = load_n(values + i * head_dim + d, n);
    for (int64_t j = from; j < to; ++j) sum = fma(set1(weights[i * kKeyBlock + j]), load_n(rows[j] + d, n), sum);
    store_n(values + i * head_dim + d, sum, n);
  }
}

// Q successive vectors over one block of keys; visible[i] of them for vector i, ascending with i.
template <int Q>
inline void attention_values(int64_t v, const int64_t* visible, int64_t head_dim, const AttentionPartial& out,
                             const AttentionScratch& scratch) {
  const float* weights = scratch.scores + v * kKeyBlock;
  float* values = out.values + v * head_dim;
  attention_add_values<Q>(scratch.rows, 0, visible[0], weights, values, head_dim);
  for (int i = 1; i < Q; ++i) {
    attention_add_values<1>(scratch.rows, visible[0], visible[i], weights + i * kKeyBlock, values + i * head_dim,
                            head_dim);
  }
}

// Adds the bias of the last `extent` positions up to `position` to the scores of keys [begin, begin + count).
inline void attention_add_bias(const float* bias, int64_t extent, int64_t position, int64_t begin, int64_t count,
                               float* scores) {
  const int64_t first = position - extent + 1;  // where bias[0] belongs
  int64_t j = std::max<int64_t>(0, first - begin);
  bias += begin - first;
  for (; j + kLanes <= count; j += kLanes) store(scores + j, load(scores + j) + load(bias + j));
  if (j < count) {
    const int n = static_cast<int>(count - j);
    store_n(scores + j, load_n(scores + j, n) + load_n(bias + j, n), n);
  }
}

template <int Q>
inline void attention_block_keys(int64_t v, int64_t begin, int64_t count, const PagedAttentionArgs& args,
                                 const AttentionTile& tile, const AttentionPartial& out,
                                 const AttentionScratch& scratch) {
  const int64_t head_dim = args.kv.head_dim, group = args.num_heads / args.kv.num_kv_heads;
  attention_scores<Q>(scratch.queries + v, count, head_dim, args.scale, scratch.keys, scratch.scores + v * kKeyBlock);
  for (int64_t i = v; i < v + Q; ++i) {
    const int64_t position = scratch.positions[i];
    const int64_t n = std::clamp<int64_t>(position + 1 - begin, 0, count);
    if (n == 0) continue;
    float* scores = scratch.scores + i * kKeyBlock;
    if (args.bias != nullptr) {
      const int64_t row = (tile.first_token + i / group) * args.num_heads + tile.kv_head * group + i % group;
      attention_add_bias(args.bias + row * args.bias_extent, args.bias_extent, position, begin, n, scores);
    }
    const int64_t before = args.window > 0 ? std::clamp<int64_t>(position - args.window + 1 - begin, 0, n) : 0;
    if (before == n) {
      std::fill_n(scores, kKeyBlock, 0.0f);  // weights: the values of a group of vectors are added together
      continue;
    }
    std::fill_n(scores, before, -__builtin_inff());
    attention_weigh(n, head_dim, scores, out.maximum + i, out.sum + i, out.values + i * head_dim);
  }
}

template <int Q>
inline void attention_block_values(int64_t v, int64_t begin, int64_t count, int64_t head_dim,
                                   const AttentionPartial& out, const AttentionScratch& scratch) {
  int64_t visible[Q];
  for (int64_t i = 0; i < Q; ++i) visible[i] = std::clamp<int64_t>(scratch.positions[v + i] + 1 - begin, 0, count);
  attention_values<Q>(v, visible, head_dim, out, scratch);
}

// One block of keys for all vectors of a tile: scores and weights first, values after. `rows` are its keys, `next`
// those of the block behind it.
template <DType kType>
inline void attention_block(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t vectors, int64_t begin,
                            const std::byte* const* rows, int64_t count, const std::byte* const* next, int64_t num_next,
                            const AttentionPartial& out, const AttentionScratch& scratch) {
  const int64_t head_dim = args.kv.head_dim;
  const int64_t plane_bytes = args.kv.plane_bytes();
  if constexpr (has_row_scale(kType)) {
    const std::byte* wide[kKeyBlock];
    for (int64_t i = 0; i < count; ++i) {
      float* to = scratch.widened + i * head_dim;
      attention_decode_row<kType>(rows[i], head_dim, to);
      attention_fetch(rows[i] + plane_bytes, head_dim + 4);
      wide[i] = reinterpret_cast<const std::byte*>(to);
    }
    attention_transpose_keys<DType::kFloat32>(wide, count, head_dim, 0, scratch.keys);
  } else {
    attention_transpose_keys<kType>(rows, count, head_dim, plane_bytes, scratch.keys);
  }
  int64_t v = 0;
  for (; v + 4 <= vectors; v += 4) attention_block_keys<4>(v, begin, count, args, tile, out, scratch);
  for (; v + 2 <= vectors; v += 2) attention_block_keys<2>(v, begin, count, args, tile, out, scratch);
  if (v < vectors) attention_block_keys<1>(v, begin, count, args, tile, out, scratch);
  attention_widen_values<kType>(rows, count, head_dim, plane_bytes, next, num_next, scratch);
  for (v = 0; v + 4 <= vectors; v += 4) attention_block_values<4>(v, begin, count, head_dim, out, scratch);
  for (; v + 2 <= vectors; v += 2) attention_block_values<2>(v, begin, count, head_dim, out, scratch);
  if (v < vectors) attention_block_values<1>(v, begin, count, head_dim, out, scratch);
}

template <DType kType>
inline void attention_blocks(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t vectors, int64_t begin,
                             int64_t end, const AttentionPartial& out, const AttentionScratch& scratch) {
  const std::byte* rows[2][kKeyBlock];
  int64_t count[2] = {attention_rows(args, tile, begin, std::min(kKeyBlock, end - begin), rows[0]), 0};
  for (int now = 0; begin < end; begin += kKeyBlock, now ^= 1) {
    const int64_t rest = end - begin - kKeyBlock;
    count[now ^ 1] =
        rest > 0 ? attention_rows(args, tile, begin + kKeyBlock, std::min(kKeyBlock, rest), rows[now ^ 1]) : 0;
    if (count[now] == 0) continue;
    attention_block<kType>(args, tile, vectors, begin, rows[now], count[now], rows[now ^ 1], count[now ^ 1], out,
                           scratch);
  }
}

void attention_segment(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t segment,
                       const AttentionPartial& out, const AttentionScratch& scratch) {
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  const int64_t vectors = tile.num_tokens * group, head_dim = args.kv.head_dim;
  for (int64_t v = 0; v < vectors; ++v) {
    out.maximum[v] = -__builtin_inff();
    out.sum[v] = 0.0f;
    const int64_t token = v / group;
    scratch.positions[v] = tile.first_position + token;
    scratch.queries[v] =
        args.q + (tile.first_token + token) * args.q_stride + (tile.kv_head * group + v % group) * head_dim;
  }
  std::memset(out.values, 0, static_cast<size_t>(vectors * head_dim) * sizeof(float));
  const int64_t end = std::min((segment + 1) * kSegment, tile.first_position + tile.num_tokens);
  const int64_t begin = std::max(segment * kSegment, first_visible(args, tile) / kKeyBlock * kKeyBlock);
  if (args.kv.dtype == DType::kFloat32) {
    attention_blocks<DType::kFloat32>(args, tile, vectors, begin, end, out, scratch);
  } else if (args.kv.dtype == DType::kBFloat16) {
    attention_blocks<DType::kBFloat16>(args, tile, vectors, begin, end, out, scratch);
  } else if (args.kv.dtype == DType::kInt8) {
    attention_blocks<DType::kInt8>(args, tile, vectors, begin, end, out, scratch);
  } else if (args.kv.dtype == DType::kFloat8E4M3) {
    attention_blocks<DType::kFloat8E4M3>(args, tile, vectors, begin, end, out, scratch);
  } else {
    attention_blocks<DType::kFloat16>(args, tile, vectors, begin, end, out, scratch);
  }
}

void attention_fold(int64_t vectors, int64_t head_dim, const AttentionPartial& next, const AttentionPartial& into) {
  for (int64_t v = 0; v < vectors; ++v) {
    if (next.sum[v] == 0.0f) continue;  // the vector saw no key of that segment
    const bool empty = into.sum[v] == 0.0f;
    float top = empty ? next.maximum[v] : std::max(into.maximum[v], next.maximum[v]);
    float old_factor, new_factor;
    store_n(&old_factor, empty ? zero() : expv(set1(into.maximum[v]) - set1(top)), 1);
    store_n(&new_factor, expv(set1(next.maximum[v]) - set1(top)), 1);
    into.sum[v] = into.sum[v] * old_factor + next.sum[v] * new_factor;
    into.maximum[v] = top;
    float* a = into.values + v * head_dim;
    const float* b = next.values + v * head_dim;
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) {
      store(a + d, load(a + d) * set1(old_factor) + load(b + d) * set1(new_factor));
    }
    if (d < head_dim) {
      int n = static_cast<int>(head_dim - d);
      store_n(a + d, load_n(a + d, n) * set1(old_factor) + load_n(b + d, n) * set1(new_factor), n);
    }
  }
}

void attention_finish(const PagedAttentionArgs& args, const AttentionTile& tile, const AttentionPartial& sums) {
  const int64_t group = args.num_heads / args.kv.num_kv_heads, head_dim = args.kv.head_dim;
  for (int64_t v = 0; v < tile.num_tokens * group; ++v) {
    float* out =
        args.out + (tile.first_token + v / group) * args.out_stride + (tile.kv_head * group + v % group) * head_dim;
    const float* values = sums.values + v * head_dim;
    Vec factor = sums.sum[v] == 0.0f ? zero() : set1(1.0f) / set1(sums.sum[v]);
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(out + d, load(values + d) * factor);
    if (d < head_dim) {
      int n = static_cast<int>(head_dim - d);
      store_n(out + d, load_n(values + d, n) * factor, n);
    }
  }
}

inline void store_scaled_rows(const KvPages& kv, const float* from, std::byte* to) {
  const float most = largest_code(kv.dtype);
  for (int64_t h = 0; h < kv.num_kv_heads; ++h, from += kv.head_dim, to += kv.head_bytes()) {
    const RowScale scale = row_scale(scaled_row_largest(from, kv.head_dim), most);
    std::memcpy(to + kv.head_dim, &scale.scale, sizeof(float));
    if (kv.dtype == DType::kInt8) {
      scaled_row_encode(from, kv.head_dim, scale.inverse, reinterpret_cast<int8_t*>(to));
      continue;
    }
    for (int64_t d = 0; d < kv.head_dim; ++d) {
      const float value = scale.inverse == 0.0f ? 0.0f : std::clamp(from[d] * scale.inverse, -most, most);
      to[d] = static_cast<std::byte>(float_to_float8_e4m3(value));
    }
  }
}

void store_kv_rows(const StoreKvArgs& args, int64_t begin, int64_t end) {
  const KvPages& kv = args.kv;
  const int64_t width = kv.row_elements();
  for (int64_t t = begin; t < end; ++t) {
    int64_t slot = args.slot_mapping[t];
    if (slot < 0) continue;
    std::byte* page = kv.page(slot / kv.block_size);
    for (int64_t plane = 0; plane < (kv.shared_values ? 1 : 2); ++plane) {
      const float* from = plane == 0 ? args.k + t * args.k_stride : args.v + t * args.v_stride;
      std::byte* to = page + plane * kv.plane_bytes() + slot % kv.block_size * kv.token_bytes();
      if (has_row_scale(kv.dtype)) {
        store_scaled_rows(kv, from, to);
        continue;
      }
      if (kv.dtype == DType::kFloat32) {
        std::memcpy(to, from, static_cast<size_t>(width) * sizeof(float));
        continue;
      }
      auto* half = reinterpret_cast<uint16_t*>(to);
      const bool bf16 = kv.dtype == DType::kBFloat16;
      int64_t d = 0;
      for (; d + kLanes <= width; d += kLanes)
        bf16 ? store_bf16(half + d, load(from + d)) : store_f16(half + d, load(from + d));
      if (d < width) {
        int n = static_cast<int>(width - d);
        uint16_t tail[kLanes];
        bf16 ? store_bf16(tail, load_n(from + d, n)) : store_f16(tail, load_n(from + d, n));
        std::memcpy(half + d, tail, static_cast<size_t>(n) * sizeof(uint16_t));
      }
    }
  }
}
