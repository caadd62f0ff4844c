// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one attention tile. A score is kLanes partial sums over the head dim, added in a fixed tree; a value is one
// chain of multiply-adds over the keys in ascending order. Neither depends on the tile around it.

inline constexpr int64_t kQueryStep = kLanes / 4;  // query vectors of a register tile of scores; it is four keys wide

template <int S, int... I>
COLUBER_INLINE Vec attention_add_halves(Vec a, Vec b, std::integer_sequence<int, I...>) {
  // Lane i: the sum of lanes i and i^S of a where bit S of i is clear, of b where it is set.
  auto kept = __builtin_shufflevector(a.v, b.v, ((I & S) != 0 ? I + kLanes : I)...);
  auto moved = __builtin_shufflevector(a.v, b.v, ((I & S) != 0 ? (I ^ S) + kLanes : (I ^ S))...);
  return {kept + moved};
}

// Lane i of the result is the sum of the lanes of v[i].
COLUBER_INLINE Vec attention_sum_each(Vec* v) {
  using Lanes = std::make_integer_sequence<int, kLanes>;
  for (int i = 0; i < kLanes / 2; ++i) v[i] = attention_add_halves<1>(v[2 * i], v[2 * i + 1], Lanes{});
  for (int i = 0; i < kLanes / 4; ++i) v[i] = attention_add_halves<2>(v[2 * i], v[2 * i + 1], Lanes{});
  for (int i = 0; i < kLanes / 8; ++i) v[i] = attention_add_halves<4>(v[2 * i], v[2 * i + 1], Lanes{});
  if constexpr (kLanes == 16) v[0] = attention_add_halves<kLanes / 2>(v[0], v[1], Lanes{});
  return v[0];
}

// scores[i][0..3] = q_i . key_j for kQueryStep vectors and four keys.
COLUBER_INLINE void attention_score_tile(const float* const* q, const float* const* keys, int64_t head_dim,
                                         float scale, float* const* scores) {
  Vec sums[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) sums[i] = zero();
  int64_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) {
    Vec k[4] = {load(keys[0] + d), load(keys[1] + d), load(keys[2] + d), load(keys[3] + d)};
#pragma GCC unroll 4
    for (int64_t i = 0; i < kQueryStep; ++i) {
      Vec x = load(q[i] + d);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sums[i * 4 + j] = fma(x, k[j], sums[i * 4 + j]);
    }
  }
  if (d < head_dim) {
    int n = static_cast<int>(head_dim - d);
    Vec k[4] = {load_n(keys[0] + d, n), load_n(keys[1] + d, n), load_n(keys[2] + d, n), load_n(keys[3] + d, n)};
#pragma GCC unroll 4
    for (int64_t i = 0; i < kQueryStep; ++i) {
      Vec x = load_n(q[i] + d, n);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sums[i * 4 + j] = fma(x, k[j], sums[i * 4 + j]);
    }
  }
  alignas(64) float flat[kLanes];
  store(flat, attention_sum_each(sums) * set1(scale));
  for (int64_t i = 0; i < kQueryStep; ++i) std::memcpy(scores[i], flat + i * 4, 4 * sizeof(float));
}

// Rows of K (or V) of one head at positions [begin, end): pointers into float32 pages, or widened copies. `end` may shrink to
// where the pages end; a null page inside cuts the block there.
inline int64_t attention_gather_rows(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t begin,
                                     int64_t end, int64_t plane, const AttentionScratch& scratch) {
  const KvPages& kv = args.kv;
  const int64_t size = kv.dtype == DType::kFloat32 ? 4 : 2;
  for (int64_t position = begin; position < end; ++position) {
    int32_t id = args.block_table.at(tile.row, position / kv.block_size);
    if (id <= kNullBlockId) return position - begin;
    int64_t element = ((plane * kv.block_size + position % kv.block_size) * kv.num_kv_heads + tile.kv_head) * kv.head_dim;
    const std::byte* row = kv.page(id) + element * size;
    int64_t i = position - begin;
    if (kv.dtype == DType::kFloat32) {
      scratch.rows[i] = reinterpret_cast<const float*>(row);
      continue;
    }
    const auto* half = reinterpret_cast<const uint16_t*>(row);
    float* wide = scratch.widened + i * kv.head_dim;
    scratch.rows[i] = wide;
    const bool bf16 = kv.dtype == DType::kBFloat16;
    int64_t d = 0;
    for (; d + kLanes <= kv.head_dim; d += kLanes) store(wide + d, bf16 ? load_bf16(half + d) : load_f16(half + d));
    if (d < kv.head_dim) {
      int n = static_cast<int>(kv.head_dim - d);
      uint16_t tail[kLanes] = {};
      std::memcpy(tail, half + d, static_cast<size_t>(n) * sizeof(uint16_t));
      store_n(wide + d, bf16 ? load_bf16(tail) : load_f16(tail), n);
    }
  }
  return end - begin;
}

// Keys of the block that vector v may see.
COLUBER_INLINE int64_t attention_visible(const AttentionTile& tile, int64_t group, int64_t v, int64_t begin,
                                         int64_t count) {
  int64_t position = tile.first_position + v / group;
  return std::clamp<int64_t>(position + 1 - begin, 0, count);
}

COLUBER_INLINE const float* attention_query(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t group,
                                            int64_t v) {
  return args.q + (tile.first_token + v / group) * args.q_stride +
         (tile.kv_head * group + v % group) * args.kv.head_dim;
}

inline void attention_scores(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t group, int64_t begin,
                             int64_t count, const AttentionScratch& scratch) {
  const int64_t vectors = tile.num_tokens * group;
  for (int64_t v = 0; v < vectors; v += kQueryStep) {
    const float* q[kQueryStep];
    int64_t last = std::min(v + kQueryStep, vectors) - 1;
    for (int64_t i = 0; i < kQueryStep; ++i) q[i] = attention_query(args, tile, group, std::min(v + i, last));
    int64_t visible = attention_visible(tile, group, last, begin, count);
    for (int64_t j = 0; j < visible; j += 4) {
      const float* keys[4];
      float* out[kQueryStep];
      float spare[4];
      for (int64_t k = 0; k < 4; ++k) keys[k] = scratch.rows[std::min(j + k, visible - 1)];
      for (int64_t i = 0; i < kQueryStep; ++i) out[i] = v + i <= last ? scratch.scores + (v + i) * kKeyBlock + j : spare;
      attention_score_tile(q, keys, args.kv.head_dim, args.scale, out);
    }
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
  constexpr int kWide = kRegisters / 8;
  int64_t d = 0;
  for (; d + kWide * kLanes <= head_dim; d += kWide * kLanes) {
    attention_value_tile<Q, kWide>(rows, from, to, weights, values, head_dim, d);
  }
  for (; d + kLanes <= head_dim; d += kLanes) {
    attention_value_tile<Q, 1>(rows, from, to, weights, values, head_dim, d);
  }
  if (d == head_dim) return;
  int n = static_cast<int>(head_dim - d);
  for (int i = 0; i < Q; ++i) {
    Vec sum = load_n(values + i * head_dim + d, n);
    for (int64_t j = from; j < to; ++j) sum = fma(set1(weights[i * kKeyBlock + j]), load_n(rows[j] + d, n), sum);
    store_n(values + i * head_dim + d, sum, n);
  }
}

void attention_segment(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t segment,
                       const AttentionPartial& out, const AttentionScratch& scratch) {
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  const int64_t vectors = tile.num_tokens * group, head_dim = args.kv.head_dim;
  for (int64_t v = 0; v < vectors; ++v) {
    out.maximum[v] = -__builtin_inff();
    out.sum[v] = 0.0f;
  }
  std::memset(out.values, 0, static_cast<size_t>(vectors * head_dim) * sizeof(float));
  const int64_t end = std::min((segment + 1) * kSegment, tile.first_position + tile.num_tokens);
  for (int64_t begin = segment * kSegment; begin < end; begin += kKeyBlock) {
    int64_t count = attention_gather_rows(args, tile, begin, std::min(begin + kKeyBlock, end), 0, scratch);
    if (count == 0) continue;
    attention_scores(args, tile, group, begin, count, scratch);
    for (int64_t v = 0; v < vectors; ++v) {
      int64_t n = attention_visible(tile, group, v, begin, count);
      if (n == 0) continue;
      attention_weigh(n, head_dim, scratch.scores + v * kKeyBlock, out.maximum + v, out.sum + v,
                      out.values + v * head_dim);
    }
    attention_gather_rows(args, tile, begin, begin + count, 1, scratch);
    int64_t v = 0;
    for (; v + 4 <= vectors; v += 4) {
      int64_t shared = attention_visible(tile, group, v, begin, count);  // positions ascend with v
      attention_add_values<4>(scratch.rows, 0, shared, scratch.scores + v * kKeyBlock, out.values + v * head_dim, head_dim);
      for (int64_t i = v + 1; i < v + 4; ++i) {
        attention_add_values<1>(scratch.rows, shared, attention_visible(tile, group, i, begin, count),
                                scratch.scores + i * kKeyBlock, out.values + i * head_dim, head_dim);
      }
    }
    for (; v < vectors; ++v) {
      attention_add_values<1>(scratch.rows, 0, attention_visible(tile, group, v, begin, count),
                              scratch.scores + v * kKeyBlock, out.values + v * head_dim, head_dim);
    }
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
    float* out = args.out + (tile.first_token + v / group) * args.out_stride +
                 (tile.kv_head * group + v % group) * head_dim;
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

void store_kv_rows(const StoreKvArgs& args, int64_t begin, int64_t end) {
  const KvPages& kv = args.kv;
  const int64_t width = kv.row_elements(), size = kv.dtype == DType::kFloat32 ? 4 : 2;
  for (int64_t t = begin; t < end; ++t) {
    int64_t slot = args.slot_mapping[t];
    if (slot < 0) continue;
    std::byte* page = kv.page(slot / kv.block_size);
    for (int64_t plane = 0; plane < 2; ++plane) {
      const float* from = plane == 0 ? args.k + t * args.k_stride : args.v + t * args.v_stride;
      std::byte* to = page + (plane * kv.block_size + slot % kv.block_size) * width * size;
      if (kv.dtype == DType::kFloat32) {
        std::memcpy(to, from, static_cast<size_t>(width) * sizeof(float));
        continue;
      }
      auto* half = reinterpret_cast<uint16_t*>(to);
      const bool bf16 = kv.dtype == DType::kBFloat16;
      int64_t d = 0;
      for (; d + kLanes <= width; d += kLanes) bf16 ? store_bf16(half + d, load(from + d)) : store_f16(half + d, load(from + d));
      if (d < width) {
        int n = static_cast<int>(width - d);
        uint16_t tail[kLanes];
        bf16 ? store_bf16(tail, load_n(from + d, n)) : store_f16(tail, load_n(from + d, n));
        std::memcpy(half + d, tail, static_cast<size_t>(n) * sizeof(uint16_t));
      }
    }
  }
}
