// SPDX-License-Identifier: Apache-2.0
// Chunked SSD. One task is one row and some heads of one group, over all chunks in order: the scores B C^T of a chunk
// are computed once for the task's heads, each head's state stays in float32 scratch, transposed to [N, P], so that
// every product has P or tokens as lanes. At N = 128, P = 64 a chunk of 32 tokens keeps a head's operands (about 100
// KB) in the L2.
#include "kernels/scan/ssd_step.inl"
#include "kernels/simd/chunk_products.inl"

// Measured on Sapphire Rapids: 7 % faster than 64, which multiplies more below the diagonal; 16 is no faster.
inline constexpr int64_t kSsdChunk = 32;
// Below this many tokens a sweep a token is cheaper than transposing the state twice.
inline constexpr int64_t kSsdMinChunked = 8;

struct SsdPlan {
  int64_t chunk;
  int64_t qp, np;   // row strides of what has tokens or P as columns
  int64_t columns;  // P, rounded up to whole vectors
  int64_t heads_per_task, tasks_per_group;
  int64_t scratch;  // floats a thread
};

// A row stride of an odd number of cache lines: the tiles read columns, which else share a few of the cache's sets.
inline int64_t ssd_stride(int64_t count) {
  constexpr int64_t kLine = 16;
  return ((count + kLine - 1) / kLine | 1) * kLine;
}

inline SsdPlan ssd_plan(const SsdArgs& args, int threads) {
  SsdPlan plan;
  plan.chunk = args.chunk_size > 0 ? args.chunk_size : kSsdChunk;
  plan.qp = ssd_stride(plan.chunk);
  plan.np = ssd_stride(args.head_dim);
  plan.columns = round_up_lanes(args.head_dim);
  const int64_t heads_per_group = args.num_heads / args.num_groups;
  // Four tasks a thread let an idle thread help; more would repeat the scores more often. The states stay below 256
  // KiB, a
  // part of the L2.
  const int64_t fitting = std::max<int64_t>(1, (64 << 10) / (args.state_size * plan.np));
  const int64_t wanted = std::clamp<int64_t>(args.rows * args.num_heads / (4 * threads), 1, fitting);
  plan.heads_per_task = std::min(heads_per_group, wanted);
  plan.tasks_per_group = (heads_per_group + plan.heads_per_task - 1) / plan.heads_per_task;
  plan.scratch = plan.chunk * args.state_size + 2 * args.state_size * plan.qp + 2 * plan.chunk * plan.qp +
                 2 * plan.chunk * plan.np + 4 * plan.qp + plan.heads_per_task * args.state_size * plan.np + 256;
  return plan;
}

struct SsdScratch {
  float *b, *bt, *ct, *scores, *weights, *x, *xs, *dt, *log2_decay, *row_scale, *factors, *states;
};

inline SsdScratch ssd_scratch(const SsdArgs& args, const SsdPlan& plan, float* memory) {
  const auto take = [&memory](int64_t count) {
    float* p = memory;
    memory += (count + 15) / 16 * 16;
    return p;
  };
  SsdScratch s;
  s.b = take(plan.chunk * args.state_size);
  s.bt = take(args.state_size * plan.qp);
  s.ct = take(args.state_size * plan.qp);
  s.scores = take(plan.chunk * plan.qp);
  s.weights = take(plan.chunk * plan.qp);
  s.x = take(plan.chunk * plan.np);
  s.xs = take(plan.chunk * plan.np);
  s.dt = take(plan.qp);
  s.log2_decay = take(plan.qp);
  s.row_scale = take(plan.qp);
  s.factors = take(plan.qp);
  s.states = take(plan.heads_per_task * args.state_size * plan.np);
  return s;
}

// One head's state [P, N] to scratch [N, np] and back, in squares: stores take two thirds of what they took element by
// element, loads a third (Zen 5, 3 MB of states). Narrow elements pass through float32 lines.
inline constexpr int64_t kSsdLines = 4;
inline constexpr int64_t kSsdLine = kMaxSsdState + kLanes;

template <typename S>
inline void ssd_load_state(const S* in, int64_t p, int64_t n, int64_t np, float* out) {
  if (in == nullptr || np > p) std::memset(out, 0, static_cast<size_t>(n * np) * sizeof(float));
  if (in == nullptr) return;
  if constexpr (std::is_same_v<S, float>) {
    transpose_into(in, n, p, n, out, np);
  } else {
    alignas(64) float lines[kSsdLines * kSsdLine];
    for (int64_t first = 0; first < p; first += kSsdLines) {
      const int64_t rows = std::min(kSsdLines, p - first);
      for (int64_t row = 0; row < rows; ++row) {
        const S* from = in + (first + row) * n;
        float* line = lines + row * kSsdLine;
        int64_t i = 0;
        for (; i + kLanes <= n; i += kLanes) store(line + i, load_state(from + i));
        if (i < n) store(line + i, load_state_n(from + i, static_cast<int>(n - i)));
      }
      transpose_into(lines, kSsdLine, rows, n, out + first, np);
    }
  }
}

template <typename S>
inline void ssd_store_state(const float* in, int64_t p, int64_t n, int64_t np, S* out) {
  if constexpr (std::is_same_v<S, float>) {
    transpose_into(in, np, n, p, out, n);
  } else {
    alignas(64) float lines[kSsdLines * kSsdLine];
    for (int64_t first = 0; first < p; first += kSsdLines) {
      const int64_t rows = std::min(kSsdLines, p - first);
      transpose_into(in + first, np, n, rows, lines, kSsdLine);
      for (int64_t row = 0; row < rows; ++row) {
        S* to = out + (first + row) * n;
        const float* line = lines + row * kSsdLine;
        int64_t i = 0;
        for (; i + kLanes <= n; i += kLanes) store_state(to + i, load(line + i));
        if (i < n) store_state_n(to + i, load(line + i), static_cast<int>(n - i));
      }
    }
  }
}

// dt, cumulative log2 decay and its power, of one head over a chunk; zeros behind q change nothing.
inline void ssd_decays(const SsdArgs& args, int64_t head, int64_t token, int64_t q, const SsdPlan& plan,
                       const SsdScratch& s) {
  const float bias = args.dt_bias != nullptr ? args.dt_bias[head] : 0.0f;
  for (int64_t i = 0; i < plan.qp; ++i) s.dt[i] = i < q ? args.dt[(token + i) * args.dt_stride + head] + bias : 0.0f;
  const Vec low = set1(args.dt_min), high = set1(args.dt_max);
  for (int64_t i = 0; i < plan.qp; i += kLanes) {
    // The operand order of min and max lets NaN through.
    store(s.dt + i, min(high, max(low, softplusv(load(s.dt + i)))));
  }
  // In double: a chunk's sum may be large while the differences that matter are small.
  const double log2_a = static_cast<double>(args.a[head]) * 1.4426950408889634;
  double sum = 0.0;
  for (int64_t i = 0; i < plan.qp; ++i) {
    if (i >= q) s.dt[i] = 0.0f;
    sum += s.dt[i] * log2_a;
    s.log2_decay[i] = static_cast<float>(sum);
  }
  for (int64_t i = 0; i < plan.qp; i += kLanes) store(s.row_scale + i, exp2_decay(load(s.log2_decay + i)));
}

// Chunk [token, token + q) for heads [h0, h1) of one group.
inline void ssd_chunk(const SsdArgs& args, const SsdPlan& plan, const SsdScratch& s, int64_t token, int64_t q,
                      int64_t h0, int64_t h1) {
  const int64_t group = h0 / (args.num_heads / args.num_groups);
  ChunkTile tile;
  tile.q = q;
  tile.n = args.state_size;
  tile.qp = plan.qp;
  tile.np = plan.np;
  tile.p = args.head_dim;
  tile.b = s.b;
  tile.bt = s.bt;
  tile.ct = s.ct;
  tile.scores = s.scores;
  tile.weights = s.weights;
  tile.x = s.x;
  tile.xs = s.xs;
  tile.row_scale = s.row_scale;
  tile.y_stride = args.y_stride;
  const float* b = args.b + token * args.b_stride + group * args.state_size;
  const float* c = args.c + token * args.c_stride + group * args.state_size;
  chunk_pack_rows(b, args.b_stride, q, tile.n, s.b, tile.n);
  chunk_pack_transposed(c, args.c_stride, q, tile.n, s.ct, plan.qp);
  chunk_pack_transposed(b, args.b_stride, q, tile.n, s.bt, plan.qp);
  chunk_product<ScoresTile>(tile, q, round_up_lanes(q));
  for (int64_t h = h0; h < h1; ++h) {
    ssd_decays(args, h, token, q, plan, s);
    chunk_pack_rows(args.x + token * args.x_stride + h * args.head_dim, args.x_stride, q, args.head_dim, s.x, plan.np);
    // Tokens lie too far apart for the processor to foresee them: this head's outputs and the next one's inputs.
    const int64_t ahead = (h + 1 < h1 ? h + 1 : h0) * args.head_dim;
    tile.y = args.y + token * args.y_stride + h * args.head_dim;
    chunk_weights(tile, s.log2_decay, s.dt, args.d != nullptr ? args.d[h] : 0.0f, [&](int64_t i) {
      chunk_prefetch_write(tile.y + i * args.y_stride, args.head_dim);
      chunk_prefetch(args.x + (token + i + (h + 1 < h1 ? 0 : q)) * args.x_stride + ahead, args.head_dim);
    });

    chunk_scale_values(tile, s.log2_decay, s.dt, s.factors);
    tile.s = s.states + (h - h0) * args.state_size * plan.np;
    tile.total = s.row_scale[q - 1];
    chunk_product<OutputTile>(tile, q, plan.columns);
    chunk_product<StateTile>(tile, tile.n, plan.columns);
  }
}

// A few tokens, or bits that must not depend on where a prompt was cut: each token sweeps over the state.
template <typename S>
inline void ssd_row_by_tokens(const SsdArgs& args, int64_t row, int64_t h0, int64_t h1) {
  const int64_t begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
  const int64_t head_elements = args.head_dim * args.state_size;
  for (int64_t h = h0; h < h1; ++h) {
    const S* own = static_cast<const S*>(args.state.target(row)) + h * head_elements;
    for (const RowPart part : RowParts(args.state, args.exports, row, begin, end)) {
      for (int64_t t = part.begin; t < part.end; ++t) ssd_step_token<S>(args, row, t, h, t == begin);
      S* to = static_cast<S*>(args.state.at(part.slot)) + h * head_elements;
      if (to != own) std::memcpy(to, own, static_cast<size_t>(head_elements) * sizeof(S));
    }
  }
}

template <typename S>
inline void ssd_store_states(const SsdArgs& args, const SsdPlan& plan, const SsdScratch& s, void* slot, int64_t h0,
                             int64_t h1) {
  for (int64_t h = h0; h < h1; ++h) {
    ssd_store_state(s.states + (h - h0) * args.state_size * plan.np, args.head_dim, args.state_size, plan.np,
                    static_cast<S*>(slot) + h * args.head_dim * args.state_size);
  }
}

template <typename S>
inline void ssd_row(const SsdArgs& args, const SsdPlan& plan, const SsdScratch& s, int64_t row, int64_t h0,
                    int64_t h1) {
  const int64_t begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
  const int64_t head_elements = args.head_dim * args.state_size;
  if (end > begin && (end - begin < kSsdMinChunked || args.state.by_token)) {
    ssd_row_by_tokens<S>(args, row, h0, h1);
    return;
  }
  const S* source = static_cast<const S*>(args.state.source(row));
  for (int64_t h = h0; h < h1; ++h) {
    ssd_load_state(source == nullptr ? nullptr : source + h * head_elements, args.head_dim, args.state_size, plan.np,
                   s.states + (h - h0) * args.state_size * plan.np);
  }
  for (const RowPart part : RowParts(args.state, args.exports, row, begin, end)) {
    for (int64_t t = part.begin; t < part.end; t += plan.chunk)
      ssd_chunk(args, plan, s, t, std::min(plan.chunk, part.end - t), h0, h1);
    ssd_store_states<S>(args, plan, s, args.state.at(part.slot), h0, h1);
  }
}

inline void ssd_chunk_scan(const SsdArgs& args, ThreadPool& pool, Workspace& workspace) {
  const SsdPlan plan = ssd_plan(args, pool.size());
  const WorkspaceScope scope(workspace);
  float* memory = workspace.take<float>(plan.scratch * pool.size());
  const int64_t heads_per_group = args.num_heads / args.num_groups;
  const int64_t tasks_per_row = args.num_groups * plan.tasks_per_group;
  pool.parallel_for(args.rows * tasks_per_row, 1, [&](int64_t first, int64_t last, int thread) {
    const SsdScratch scratch = ssd_scratch(args, plan, memory + thread * plan.scratch);
    const SubnormalsAreZero guard;
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / tasks_per_row, group = task % tasks_per_row / plan.tasks_per_group;
      const int64_t h0 = group * heads_per_group + task % plan.tasks_per_group * plan.heads_per_task;
      const int64_t h1 = std::min(h0 + plan.heads_per_task, (group + 1) * heads_per_group);
      if (args.state.is_null(row)) {
        ssd_zero_rows(args, args.query_start_loc[row], args.query_start_loc[row + 1], h0, h1);
        continue;
      }
      ssd_by_state_type(args.state.dtype,
                        [&](auto type) { ssd_row<decltype(type)>(args, plan, scratch, row, h0, h1); });
    }
  });
}
