// SPDX-License-Identifier: Apache-2.0
// Lanes are value columns, which lie contiguous in the state [K, V]: no sum runs across lanes. Prefill: the chunk
// products, one task a row and head. Step: one sweep over the state in place.
#include "kernels/simd/vec_recurrent.inl"
#include "kernels/simd/chunk_products.inl"

inline constexpr int64_t kLightningChunk = 64;
// Below this many tokens a sweep a token is cheaper than the chunk's products.
inline constexpr int64_t kLightningMinChunked = 4;

// Columns [v, v + kCols vectors) of one token of one head; the last vector has `lanes` lanes.
template <int kCols, typename In, typename Out>
COLUBER_INLINE void lightning_step_columns(const float* q, const float* k, const float* value, float decay, int64_t dim,
                                           int lanes, const In* in, int64_t in_stride, Out* out, float* o) {
  const Vec scale = set1(decay);
  Vec v[kCols], sum[kCols];
#pragma GCC unroll 4
  for (int c = 0; c < kCols; ++c) {
    v[c] = lanes == kLanes ? load(value + c * kLanes) : load_n(value + c * kLanes, lanes);
    sum[c] = zero();
  }
  for (int64_t i = 0; i < dim; ++i) {
    const Vec key = set1(k[i]), query = set1(q[i]);
#pragma GCC unroll 4
    for (int c = 0; c < kCols; ++c) {
      const In* from = in + i * in_stride + c * kLanes;
      Out* to = out + i * dim + c * kLanes;
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
    if (lanes == kLanes) {
      store(o + c * kLanes, sum[c]);
    } else {
      store_n(o + c * kLanes, sum[c], lanes);
    }
  }
}

template <typename In, typename Out>
inline void lightning_step_head(const LightningAttentionArgs& args, int64_t token, int64_t head, const In* in,
                                int64_t in_stride, Out* out) {
  const int64_t place = token * args.token_stride + head * args.head_stride;
  const float decay = std::exp(-args.slopes[head]);
  float* o = args.o + token * args.o_stride + head * args.head_dim;
  const float *q = args.q + place, *k = args.k + place, *v = args.v + place;
  const int64_t dim = args.head_dim;
  const int64_t in_step = in_stride == 0 ? 0 : 1;  // one row of zeros stays where it is
  int64_t c = 0;
  for (; c + 4 * kLanes <= dim; c += 4 * kLanes) {
    lightning_step_columns<4>(q, k, v + c, decay, dim, kLanes, in + c * in_step, in_stride, out + c, o + c);
  }
  for (; c < dim; c += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, dim - c));
    lightning_step_columns<1>(q, k, v + c, decay, dim, lanes, in + c * in_step, in_stride, out + c, o + c);
  }
}

// `first` reads the row's source, later tokens what the one before wrote.
template <typename S>
inline void lightning_step_token(const LightningAttentionArgs& args, int64_t row, int64_t token, int64_t head,
                                 bool first) {
  alignas(64) static const float kZeros[4 * kLanes] = {};
  const int64_t place = head * args.head_dim * args.head_dim;
  S* target = static_cast<S*>(args.state.target(row)) + place;
  const void* source = first ? args.state.source(row) : args.state.target(row);
  if (source == nullptr) {
    lightning_step_head(args, token, head, static_cast<const float*>(kZeros), 0, target);
  } else {
    lightning_step_head(args, token, head, static_cast<const S*>(source) + place, args.head_dim, target);
  }
}

template <typename Work>
COLUBER_INLINE void lightning_by_state_type(DType dtype, Work&& work) {
  switch (dtype) {
    case DType::kBFloat16:
      return work(StateBf16{});
    case DType::kFloat16:
      return work(StateF16{});
    default:
      return work(float{});
  }
}

inline void lightning_zero(const LightningAttentionArgs& args, int64_t begin, int64_t end, int64_t head) {
  for (int64_t t = begin; t < end; ++t) {
    std::memset(args.o + t * args.o_stride + head * args.head_dim, 0,
                static_cast<size_t>(args.head_dim) * sizeof(float));
  }
}

struct LightningScratch {
  ChunkTile tile;
  float *b, *bt, *ct, *ones, *log2_decay, *row_scale, *factors;
};

inline int64_t lightning_chunk(const LightningAttentionArgs& args) {
  return args.chunk_size > 0 ? args.chunk_size : kLightningChunk;
}

inline int64_t lightning_scratch_floats(const LightningAttentionArgs& args) {
  const int64_t chunk = lightning_chunk(args), qp = round_up_lanes(chunk), np = round_up_lanes(args.head_dim);
  return chunk * args.head_dim + 2 * args.head_dim * qp + 2 * chunk * qp + 2 * chunk * np + args.head_dim * np +
         4 * qp + 256;
}

inline LightningScratch lightning_scratch(const LightningAttentionArgs& args, float* memory) {
  const auto take = [&memory](int64_t count) {
    float* p = memory;
    memory += (count + 15) / 16 * 16;
    return p;
  };
  const int64_t chunk = lightning_chunk(args), dim = args.head_dim;
  LightningScratch s;
  s.tile.n = s.tile.p = dim;
  s.tile.qp = round_up_lanes(chunk);
  s.tile.np = round_up_lanes(dim);
  s.b = take(chunk * dim);
  s.bt = take(dim * s.tile.qp);
  s.ct = take(dim * s.tile.qp);
  s.ones = take(s.tile.qp);
  s.log2_decay = take(s.tile.qp);
  s.row_scale = take(s.tile.qp);
  s.factors = take(s.tile.qp);
  s.tile.b = s.b;
  s.tile.bt = s.bt;
  s.tile.ct = s.ct;
  s.tile.row_scale = s.row_scale;
  s.tile.scores = take(chunk * s.tile.qp);
  s.tile.weights = take(chunk * s.tile.qp);
  s.tile.x = take(chunk * s.tile.np);
  s.tile.xs = take(chunk * s.tile.np);
  s.tile.s = take(dim * s.tile.np);
  s.tile.y_stride = args.o_stride;
  return s;
}

// The decays depend on the head alone: a shorter last chunk reads their beginning.
inline void lightning_decays(const LightningAttentionArgs& args, int64_t head, const LightningScratch& s) {
  const double step = static_cast<double>(args.slopes[head]) * 1.4426950408889634;
  for (int64_t i = 0; i < s.tile.qp; ++i) {
    s.log2_decay[i] = static_cast<float>(-step * static_cast<double>(i + 1));
    s.ones[i] = 1.0f;
  }
  for (int64_t i = 0; i < s.tile.qp; i += kLanes) store(s.row_scale + i, exp2_decay(load(s.log2_decay + i)));
}

inline void lightning_chunk_tokens(const LightningAttentionArgs& args, LightningScratch& s, int64_t token, int64_t q,
                                   int64_t head) {
  const int64_t place = token * args.token_stride + head * args.head_stride;
  s.tile.q = q;
  s.tile.y = args.o + token * args.o_stride + head * args.head_dim;
  s.tile.total = s.row_scale[q - 1];
  chunk_pack_rows(args.k + place, args.token_stride, q, s.tile.n, s.b, s.tile.n);
  chunk_pack_transposed(args.q + place, args.token_stride, q, s.tile.n, s.ct, s.tile.qp);
  chunk_pack_transposed(args.k + place, args.token_stride, q, s.tile.n, s.bt, s.tile.qp);
  chunk_pack_rows(args.v + place, args.token_stride, q, s.tile.p, s.tile.x, s.tile.np);
  chunk_product<ScoresTile>(s.tile, q, round_up_lanes(q));
  chunk_weights(s.tile, s.log2_decay, s.ones, 0.0f, [&](int64_t i) {
    // The tokens of the next chunk lie too far apart for the processor to foresee them.
    const int64_t next = place + (q + i) * args.token_stride;
    chunk_prefetch_write(s.tile.y + i * args.o_stride, args.head_dim);
    chunk_prefetch(args.q + next, args.head_dim);
    chunk_prefetch(args.k + next, args.head_dim);
    chunk_prefetch(args.v + next, args.head_dim);
  });
  chunk_scale_values(s.tile, s.log2_decay, s.ones, s.factors);
  chunk_product<OutputTile>(s.tile, q, s.tile.np);
  chunk_product<StateTile>(s.tile, s.tile.n, s.tile.np);
}

template <typename S>
inline void lightning_row(const LightningAttentionArgs& args, float* memory, int64_t row, int64_t head) {
  const int64_t begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
  if (end > begin && end - begin < kLightningMinChunked) {
    for (int64_t t = begin; t < end; ++t) lightning_step_token<S>(args, row, t, head, t == begin);
    return;
  }
  LightningScratch s = lightning_scratch(args, memory);
  lightning_decays(args, head, s);
  const int64_t dim = args.head_dim, np = s.tile.np, place = head * dim * dim;
  const S* source = static_cast<const S*>(args.state.source(row));
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t c = 0; c < np; c += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, dim - c));
      store(s.tile.s + i * np + c, source == nullptr ? zero() : load_state_n(source + place + i * dim + c, lanes));
    }
  }
  const int64_t chunk = lightning_chunk(args);
  for (int64_t t = begin; t < end; t += chunk) lightning_chunk_tokens(args, s, t, std::min(chunk, end - t), head);
  S* target = static_cast<S*>(args.state.target(row));
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t c = 0; c < np; c += kLanes) {
      const int lanes = static_cast<int>(std::min<int64_t>(kLanes, dim - c));
      store_state_n(target + place + i * dim + c, load(s.tile.s + i * np + c), lanes);
    }
  }
}

inline void lightning_attention(const LightningAttentionArgs& args, ThreadPool& pool, Workspace& workspace) {
  const WorkspaceScope scope(workspace);
  const int64_t floats = lightning_scratch_floats(args);
  float* memory = workspace.take<float>(floats * pool.size());
  pool.parallel_for(args.rows * args.num_heads, 1, [&](int64_t first, int64_t last, int thread) {
    const SubnormalsAreZero guard;
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / args.num_heads, head = task % args.num_heads;
      if (args.state.is_null(row)) {
        lightning_zero(args, args.query_start_loc[row], args.query_start_loc[row + 1], head);
      } else {
        lightning_by_state_type(args.state.dtype, [&](auto type) {
          lightning_row<decltype(type)>(args, memory + thread * floats, row, head);
        });
      }
    }
  });
}

inline void lightning_attention_update(const LightningAttentionArgs& args, ThreadPool& pool, Workspace&) {
  const int64_t tasks = args.rows * args.num_heads;
  pool.parallel_for(tasks, std::max<int64_t>(1, tasks / (8 * pool.size())), [&](int64_t first, int64_t last, int) {
    const SubnormalsAreZero guard;
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / args.num_heads, head = task % args.num_heads;
      if (args.state.is_null(row)) {
        lightning_zero(args, row, row + 1, head);
      } else {
        lightning_by_state_type(args.state.dtype,
                                [&](auto type) { lightning_step_token<decltype(type)>(args, row, row, head, true); });
      }
    }
  });
}
