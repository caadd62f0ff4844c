// SPDX-License-Identifier: Apache-2.0
// Lanes are value columns, which lie contiguous in the state [K, V]: no sum runs across lanes. One task is a row, a
// head and a part of its columns. Step: one sweep over the state in place. Prefill: chunk products; with one decay a
// token (linear_*) over 64 tokens, with one a key channel (channel_*) over as many tokens as there are lanes.
#include "kernels/simd/vec_recurrent.inl"
#include "kernels/simd/chunk_products.inl"

inline constexpr int64_t kLinearChunk = 64;
// Below this many tokens a sweep a token is cheaper than the chunk's products.
inline constexpr int64_t kLinearMinChunked = 4;

struct LinearTask {
  int64_t row, head, column, width;  // columns [column, column + width) of the head's values
};

// How the columns of a head are cut: whole where rows and heads keep every thread busy. A column's sums do not depend
// on it.
struct LinearParts {
  int64_t parts = 1, width = 0;

  LinearParts(const GatedLinearAttentionArgs& args, int threads) {
    const int64_t heads = std::max<int64_t>(1, args.rows * args.num_heads), least = 4 * kLanes;
    const int64_t wanted = (2 * threads + heads - 1) / heads;
    const int64_t most = std::max<int64_t>(1, args.value_dim / least);
    width = (args.value_dim + std::min(wanted, most) - 1) / std::min(wanted, most);
    width = std::min((width + least - 1) / least * least, args.value_dim);
    parts = (args.value_dim + width - 1) / width;
  }
  LinearTask task(const GatedLinearAttentionArgs& args, int64_t index) const {
    const int64_t head = index / parts, column = index % parts * width;
    return {head / args.num_heads, head % args.num_heads, column, std::min(width, args.value_dim - column)};
  }
};

struct LinearToken {
  const float *q, *k, *v;
  float* o;
};

inline LinearToken linear_token(const GatedLinearAttentionArgs& args, const LinearTask& task, int64_t token) {
  const int64_t shared = task.head / args.group;
  return {args.q + token * args.q_stride + task.head * args.q_head_stride,
          args.k + token * args.k_stride + shared * args.k_head_stride,
          args.v + token * args.v_stride + shared * args.v_head_stride + task.column,
          args.o + token * args.o_stride + task.head * args.value_dim + task.column};
}

// Factors of the token's decay: one, or one a channel. Returns their stride.
inline int64_t linear_decay(const GatedLinearAttentionArgs& args, const LinearTask& task, int64_t token, float* one,
                            const float** factors) {
  const int64_t shared = task.head / args.group;
  if (args.decay != nullptr) {
    *factors = args.decay + token * args.decay_stride + shared * args.key_dim;
    return 1;
  }
  *one =
      std::exp(args.slopes != nullptr ? -args.slopes[task.head] : args.log_decay[token * args.decay_stride + shared]);
  *factors = one;
  return 0;
}

// Columns [0, kCols vectors) of one token of one head; the last vector has `lanes` lanes.
template <int kCols, typename In, typename Out>
COLUBER_INLINE void linear_step_columns(const GatedLinearAttentionArgs& args, const LinearToken& token,
                                        const float* decay, int64_t decay_step, int64_t column, int lanes, const In* in,
                                        int64_t in_stride, Out* out) {
  Vec v[kCols], sum[kCols];
#pragma GCC unroll 4
  for (int c = 0; c < kCols; ++c) {
    const float* value = token.v + column + c * kLanes;
    v[c] = lanes == kLanes ? load(value) : load_n(value, lanes);
    sum[c] = zero();
  }
  for (int64_t i = 0; i < args.key_dim; ++i) {
    const Vec key = set1(token.k[i]), query = set1(token.q[i]), scale = set1(decay[i * decay_step]);
#pragma GCC unroll 4
    for (int c = 0; c < kCols; ++c) {
      const In* from = in + i * in_stride + c * kLanes;
      Out* to = out + i * args.value_dim + c * kLanes;
      const Vec old = lanes == kLanes ? load_state(from) : load_state_n(from, lanes);
      const Vec s = fma(scale, old, key * v[c]);
      if (lanes == kLanes) {
        store_state(to, s);
      } else {
        store_state_n(to, s, lanes);
      }
      sum[c] = fma(query, s, sum[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kCols; ++c) {
    float* o = token.o + column + c * kLanes;
    if (lanes == kLanes) {
      store(o, sum[c] * set1(args.scale));
    } else {
      store_n(o, sum[c] * set1(args.scale), lanes);
    }
  }
}

// `in` has rows `in_stride` apart; 0: one row of zeros, which stays where it is.
template <typename In, typename Out>
inline void linear_step_head(const GatedLinearAttentionArgs& args, const LinearTask& task, int64_t t, const In* in,
                             int64_t in_stride, Out* out) {
  const LinearToken token = linear_token(args, task, t);
  float one;
  const float* decay;
  const int64_t decay_step = linear_decay(args, task, t, &one, &decay);
  const int64_t in_step = in_stride == 0 ? 0 : 1;
  int64_t c = 0;
  for (; c + 4 * kLanes <= task.width; c += 4 * kLanes) {
    linear_step_columns<4>(args, token, decay, decay_step, c, kLanes, in + c * in_step, in_stride, out + c);
  }
  for (; c < task.width; c += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, task.width - c));
    linear_step_columns<1>(args, token, decay, decay_step, c, lanes, in + c * in_step, in_stride, out + c);
  }
}

inline int64_t linear_state_place(const GatedLinearAttentionArgs& args, const LinearTask& task) {
  return task.head * args.key_dim * args.value_dim + task.column;
}

// `first` reads the row's source, later tokens what the one before wrote.
template <typename S>
inline void linear_step_token(const GatedLinearAttentionArgs& args, const LinearTask& task, int64_t token, bool first) {
  alignas(64) static const float kZeros[4 * kLanes] = {};
  const int64_t place = linear_state_place(args, task);
  S* target = static_cast<S*>(args.state.target(task.row)) + place;
  const void* source = first ? args.state.source(task.row) : args.state.target(task.row);
  if (source == nullptr) {
    linear_step_head(args, task, token, static_cast<const float*>(kZeros), 0, target);
  } else {
    linear_step_head(args, task, token, static_cast<const S*>(source) + place, args.value_dim, target);
  }
}

template <typename Work>
COLUBER_INLINE void linear_by_state_type(DType dtype, Work&& work) {
  switch (dtype) {
    case DType::kBFloat16:
      return work(StateBf16{});
    case DType::kFloat16:
      return work(StateF16{});
    default:
      return work(float{});
  }
}

inline void linear_zero(const GatedLinearAttentionArgs& args, const LinearTask& task, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    std::memset(linear_token(args, task, t).o, 0, static_cast<size_t>(task.width) * sizeof(float));
  }
}

// Working memory of one thread.
struct LinearScratch : ChunkTile {
  float* keys_t = nullptr;        // [K, qp]
  float* queries_t = nullptr;     // [K, qp]
  float* scale_of_row = nullptr;  // ChunkTile's row_scale
  // One decay a token.
  float* keys = nullptr;        // ChunkTile's b
  float* ones = nullptr;        // [qp]
  float* log2_decay = nullptr;  // [qp]
  float* factors = nullptr;     // [qp]
  // One a key channel.
  float* queries = nullptr;    // [kLanes, K] with the decay since the chunk's start; ChunkTile's ct is their transpose
  float* decayed_t = nullptr;  // that transpose
  float* decays = nullptr;     // [kLanes, K]
  float* decays_t = nullptr;   // [K, kLanes]
  float* keys_to_end = nullptr;  // [K, kLanes] with the decay to the chunk's end
  float* totals = nullptr;       // [K] what the chunk leaves of the state
};

// Places the parts of `s` from `memory` on; returns how many floats they take. Nothing is written.
inline int64_t linear_carve(const GatedLinearAttentionArgs& args, int64_t width, float* memory, LinearScratch& s) {
  int64_t used = 0;
  const auto take = [&](int64_t count) {
    float* p = memory == nullptr ? nullptr : memory + used;
    used += (count + 15) / 16 * 16;
    return p;
  };
  const bool by_channel = args.decay != nullptr;
  const int64_t chunk = by_channel ? kLanes : args.chunk_size > 0 ? args.chunk_size : kLinearChunk;
  s.n = args.key_dim;
  s.p = width;
  s.qp = round_up_lanes(chunk);
  s.np = round_up_lanes(width);
  const int64_t kp = round_up_lanes(s.n);
  s.queries_t = take(s.n * s.qp);
  s.bt = s.keys_t = take(s.n * s.qp);
  s.row_scale = s.scale_of_row = take(s.qp);
  s.scores = take(chunk * s.qp);
  s.weights = take(chunk * s.qp);
  s.x = take(chunk * s.np);
  s.s = take(s.n * s.np);
  s.y_stride = args.o_stride;
  if (by_channel) {
    s.ct = s.decayed_t = take(s.n * s.qp);
    s.decays_t = take(s.n * s.qp);
    s.keys_to_end = take(s.n * s.qp);
    s.queries = take(chunk * kp);
    s.decays = take(chunk * kp);
    s.totals = take(kp);
  } else {
    s.ct = s.queries_t;
    s.b = s.keys = take(chunk * s.n);
    s.xs = take(chunk * s.np);
    s.ones = take(s.qp);
    s.log2_decay = take(s.qp);
    s.factors = take(s.qp);
  }
  return used;
}

// --- one decay a token ---

// Behind this much decay a chunk ends: differences of larger sums lose digits that matter.
inline constexpr double kLinearMostLog2 = 64.0;

// Decays from the chunk's start up to and with each token, which are the same in every chunk where they are constant.
// Returns the chunk's tokens, at most `q`.
inline int64_t linear_decays(const GatedLinearAttentionArgs& args, const LinearTask& task, int64_t token, int64_t q,
                             LinearScratch& s) {
  constexpr double kLog2E = 1.4426950408889634;
  const float* log_decay = args.slopes != nullptr ? nullptr : args.log_decay + task.head / args.group;
  double sum = 0.0;
  int64_t tokens = q;
  for (int64_t i = 0; i < s.qp; ++i) {
    if (args.slopes != nullptr) {
      sum = -static_cast<double>(args.slopes[task.head]) * kLog2E * static_cast<double>(i + 1);
    } else if (i < tokens) {
      sum += static_cast<double>(log_decay[(token + i) * args.decay_stride]) * kLog2E;
      if (sum < -kLinearMostLog2) tokens = i + 1;
    }
    s.log2_decay[i] = static_cast<float>(sum);
    s.ones[i] = 1.0f;
  }
  for (int64_t i = 0; i < s.qp; i += kLanes) store(s.scale_of_row + i, exp2_decay(load(s.log2_decay + i)));
  return tokens;
}

inline void linear_scale(float scale, float* values, int64_t count) {
  if (scale == 1.0f) return;
  for (int64_t i = 0; i < count; i += kLanes) store(values + i, load(values + i) * set1(scale));
}

inline void linear_chunk_tokens(const GatedLinearAttentionArgs& args, const LinearTask& task, LinearScratch& s,
                                int64_t t, int64_t q) {
  const LinearToken token = linear_token(args, task, t);
  s.q = q;
  s.y = token.o;
  s.total = s.row_scale[q - 1];
  chunk_pack_rows(token.k, args.k_stride, q, s.n, s.keys, s.n);
  chunk_pack_transposed(token.q, args.q_stride, q, s.n, s.queries_t, s.qp);
  linear_scale(args.scale, s.queries_t, s.n * s.qp);
  chunk_pack_transposed(token.k, args.k_stride, q, s.n, s.keys_t, s.qp);
  chunk_pack_rows(token.v, args.v_stride, q, s.p, s.x, s.np);
  chunk_product<ScoresTile>(s, q, round_up_lanes(q));
  chunk_weights(s, s.log2_decay, s.ones, 0.0f, [&](int64_t i) {
    // The tokens of the next chunk lie too far apart for the processor to foresee them.
    chunk_prefetch_write(s.y + i * args.o_stride, s.p);
    chunk_prefetch(token.q + (q + i) * args.q_stride, s.n);
    chunk_prefetch(token.k + (q + i) * args.k_stride, s.n);
    chunk_prefetch(token.v + (q + i) * args.v_stride, s.p);
  });
  chunk_scale_values(s, s.log2_decay, s.ones, s.factors);
  chunk_product<OutputTile>(s, q, s.np);
  chunk_product<StateTile>(s, s.n, s.np);
}

inline void linear_chunks(const GatedLinearAttentionArgs& args, const LinearTask& task, LinearScratch& s, int64_t begin,
                          int64_t end) {
  const int64_t chunk = args.chunk_size > 0 ? args.chunk_size : kLinearChunk;
  std::fill_n(s.queries_t, s.n * s.qp, 0.0f);  // a short chunk leaves columns that linear_scale reads
  for (int64_t t = begin; t < end; t += s.q) {
    int64_t q = std::min(chunk, end - t);
    if (t == begin || args.slopes == nullptr) q = linear_decays(args, task, t, q, s);
    linear_chunk_tokens(args, task, s, t, q);
  }
}

// --- one decay a key channel ---

// Rows of scaled queries times the decay since the chunk's start, and of decays; what the chunk leaves of each channel.
// Tokens behind the last one keep all and ask for nothing.
inline void channel_rows(const GatedLinearAttentionArgs& args, const LinearTask& task, LinearScratch& s, int64_t t) {
  const int64_t kp = round_up_lanes(s.n), shared = task.head / args.group;
  const LinearToken token = linear_token(args, task, t);
  for (int64_t c = 0; c < s.n; c += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, s.n - c));
    Vec total = set1(1.0f);
    for (int64_t i = 0; i < kLanes; ++i) {
      const bool there = i < s.q;
      const float* from = args.decay + (t + i) * args.decay_stride + shared * args.key_dim + c;
      const Vec decay = there ? load_n(from, lanes) : set1(1.0f);
      const Vec query = there ? load_n(token.q + i * args.q_stride + c, lanes) * set1(args.scale) : zero();
      total = total * decay;
      store(s.decays + i * kp + c, decay);
      store(s.queries + i * kp + c, query * total);
    }
    store(s.totals + c, total);
  }
}

// A key's weight in the queries behind it, decay by decay: scores[i, j] = sum_c q[i, c] k[j, c] prod_{j < m <= i} a[m,
// c], with lanes j. What is left of the keys at the chunk's end falls out.
inline void channel_scores(LinearScratch& s) {
  alignas(64) float unit[kLanes][kLanes] = {};
  for (int i = 0; i < kLanes; ++i) unit[i][i] = 1.0f;
  Vec sums[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) sums[i] = zero();
  for (int64_t c = 0; c < s.n; ++c) {
    const float *query = s.queries_t + c * kLanes, *decay = s.decays_t + c * kLanes;
    const Vec key = load(s.keys_t + c * kLanes);
    Vec kept = zero();
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      kept = fma(kept, set1(decay[i]), key * load(unit[i]));
      sums[i] = fma(set1(query[i]), kept, sums[i]);
    }
    store(s.keys_to_end + c * kLanes, kept);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(s.scores + i * kLanes, sums[i]);
}

// s = totals * s + keys_to_end x; rows are keys.
struct ChannelStateTile {
  template <int kRows, int kCols>
  static inline void run(const ChunkTile& tile, int64_t row, int64_t col) {
    const LinearScratch& t = static_cast<const LinearScratch&>(tile);
    const float* keys = t.keys_to_end + row * kLanes;
    Vec acc[kRows][kCols];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c)
        acc[r][c] = set1(t.totals[row + r]) * load(t.s + (row + r) * t.np + col + c * kLanes);
    }
    for (int64_t i = 0; i < t.q; ++i) {
      Vec column[kCols];
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) column[c] = load(t.x + i * t.np + col + c * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec value = set1(keys[r * kLanes + i]);
#pragma GCC unroll 8
        for (int c = 0; c < kCols; ++c) acc[r][c] = fma(value, column[c], acc[r][c]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) store(t.s + (row + r) * t.np + col + c * kLanes, acc[r][c]);
    }
  }
};

inline void channel_chunks(const GatedLinearAttentionArgs& args, const LinearTask& task, LinearScratch& s,
                           int64_t begin, int64_t end) {
  const int64_t kp = round_up_lanes(s.n);
  std::fill_n(s.scale_of_row, s.qp, 1.0f);  // the queries bring their decays along
  for (int64_t t = begin; t < end; t += kLanes) {
    const LinearToken token = linear_token(args, task, t);
    s.q = std::min<int64_t>(kLanes, end - t);
    s.y = token.o;
    channel_rows(args, task, s, t);
    transpose_into(s.queries, kp, kLanes, s.n, s.decayed_t, s.qp);
    transpose_into(s.decays, kp, kLanes, s.n, s.decays_t, s.qp);
    chunk_pack_transposed(token.k, args.k_stride, s.q, s.n, s.keys_t, s.qp);
    chunk_pack_transposed(token.q, args.q_stride, s.q, s.n, s.queries_t, s.qp);
    linear_scale(args.scale, s.queries_t, s.n * s.qp);
    chunk_pack_rows(token.v, args.v_stride, s.q, s.p, s.x, s.np);
    channel_scores(s);
    transpose_into(s.scores, s.qp, kLanes, kLanes, s.weights, s.qp);
    chunk_product<OutputTile>(s, s.q, s.np);
    chunk_product<ChannelStateTile>(s, s.n, s.np);
  }
}

template <typename S>
inline void linear_load_state(const GatedLinearAttentionArgs& args, const LinearTask& task, LinearScratch& s) {
  const S* source = static_cast<const S*>(args.state.source(task.row));
  const int64_t place = linear_state_place(args, task);
  for (int64_t i = 0; i < s.n; ++i) {
    for (int64_t c = 0; c < s.np; c += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, s.p - c));
      const Vec old = source == nullptr ? zero() : load_state_n(source + place + i * args.value_dim + c, lanes);
      store(s.s + i * s.np + c, old);
    }
  }
}

template <typename S>
inline void linear_store_state(const GatedLinearAttentionArgs& args, const LinearTask& task, const LinearScratch& s,
                               int32_t slot) {
  S* target = static_cast<S*>(args.state.at(slot)) + linear_state_place(args, task);
  for (int64_t i = 0; i < s.n; ++i) {
    for (int64_t c = 0; c < s.np; c += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, s.p - c));
      store_state_n(target + i * args.value_dim + c, load(s.s + i * s.np + c), lanes);
    }
  }
}

// What the row's tokens so far have left in its own slot.
template <typename S>
inline void linear_copy_state(const GatedLinearAttentionArgs& args, const LinearTask& task, int32_t slot) {
  const int64_t place = linear_state_place(args, task);
  const S* from = static_cast<const S*>(args.state.target(task.row)) + place;
  S* to = static_cast<S*>(args.state.at(slot)) + place;
  for (int64_t i = 0; i < args.key_dim; ++i)
    std::memcpy(to + i * args.value_dim, from + i * args.value_dim, static_cast<size_t>(task.width) * sizeof(S));
}

// Token by token. The columns that a step takes at once go through all tokens before the next ones: their part of the
// state stays in the first-level cache.
template <typename S>
inline void linear_steps(const GatedLinearAttentionArgs& args, const LinearTask& task, int64_t begin, int64_t end) {
  LinearTask strip = task;
  for (int64_t c = 0; c < task.width; c += 4 * kLanes) {
    strip.column = task.column + c;
    strip.width = std::min<int64_t>(4 * kLanes, task.width - c);
    for (const RowPart part : RowParts(args.state, args.exports, task.row, begin, end)) {
      for (int64_t t = part.begin; t < part.end; ++t) linear_step_token<S>(args, strip, t, t == begin);
      if (part.end < end) linear_copy_state<S>(args, strip, part.slot);
    }
  }
}

template <typename S>
inline void linear_row(const GatedLinearAttentionArgs& args, const LinearTask& task, float* memory) {
  const int64_t begin = args.query_start_loc[task.row], end = args.query_start_loc[task.row + 1];
  if (end > begin && (end - begin < kLinearMinChunked || args.state.by_token)) {
    linear_steps<S>(args, task, begin, end);
    return;
  }
  LinearScratch s;
  linear_carve(args, task.width, memory, s);
  linear_load_state<S>(args, task, s);
  for (const RowPart part : RowParts(args.state, args.exports, task.row, begin, end)) {
    if (args.decay != nullptr) {
      channel_chunks(args, task, s, part.begin, part.end);
    } else {
      linear_chunks(args, task, s, part.begin, part.end);
    }
    linear_store_state<S>(args, task, s, part.slot);
  }
}

inline void gated_linear_attention(const GatedLinearAttentionArgs& args, ThreadPool& pool, Workspace& workspace) {
  const LinearParts parts(args, pool.size());
  const WorkspaceScope scope(workspace);
  LinearScratch sizes;
  const int64_t floats = linear_carve(args, parts.width, nullptr, sizes);
  float* memory = workspace.take<float>(floats * pool.size());
  pool.parallel_for(args.rows * args.num_heads * parts.parts, 1, [&](int64_t first, int64_t last, int thread) {
    const SubnormalsAreZero guard;
    for (int64_t i = first; i < last; ++i) {
      const LinearTask task = parts.task(args, i);
      if (args.state.is_null(task.row)) {
        linear_zero(args, task, args.query_start_loc[task.row], args.query_start_loc[task.row + 1]);
      } else {
        linear_by_state_type(args.state.dtype,
                             [&](auto type) { linear_row<decltype(type)>(args, task, memory + thread * floats); });
      }
    }
  });
}

inline void gated_linear_attention_update(const GatedLinearAttentionArgs& args, ThreadPool& pool, Workspace&) {
  const LinearParts parts(args, pool.size());
  const int64_t tasks = args.rows * args.num_heads * parts.parts;
  pool.parallel_for(tasks, std::max<int64_t>(1, tasks / (8 * pool.size())), [&](int64_t first, int64_t last, int) {
    const SubnormalsAreZero guard;
    for (int64_t i = first; i < last; ++i) {
      const LinearTask task = parts.task(args, i);
      if (args.state.is_null(task.row)) {
        linear_zero(args, task, task.row, task.row + 1);
      } else {
        linear_by_state_type(args.state.dtype,
                             [&](auto type) { linear_step_token<decltype(type)>(args, task, task.row, true); });
      }
    }
  });
}

inline void lightning_attention(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace) {
  gated_linear_attention(general_form(args), pool, workspace);
}

inline void lightning_attention_update(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace) {
  gated_linear_attention_update(general_form(args), pool, workspace);
}
