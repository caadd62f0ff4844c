// SPDX-License-Identifier: Apache-2.0
// Lanes are value columns, which lie contiguous in the state [K, V]: no sum runs across lanes. A group of columns is
// copied to scratch that stays in the first-level cache, and each row of it is read and written once for several tokens;
// one token alone sweeps over the state in place.
#include "kernels/simd/vec_recurrent.inl"

// Tokens and vectors of columns whose sums and values fit in the registers together.
inline constexpr int kWkv6Tokens = kRegisters == 32 ? 4 : 2;
inline constexpr int kWkv6Vecs = 2;

COLUBER_INLINE Vec wkv6_load(const float* p, int lanes) { return lanes == kLanes ? load(p) : load_n(p, lanes); }

// sum_k r * u * k of one token and head
inline float wkv6_bonus(const Wkv6Args& args, int64_t at, int64_t channel) {
  Vec sum = zero();
  for (int64_t i = 0; i < args.head_dim; i += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, args.head_dim - i));
    const Vec rk = load_n(args.r + at + i, lanes) * load_n(args.k + at + i, lanes);
    sum = fma(rk, load_n(args.u + channel + i, lanes), sum);
  }
  return reduce_add(sum);
}

// Columns [column, column + kVecs vectors) of tokens [token, token + kTokens) of one head; the last vector has `lanes`
// lanes. Rows of `in` lie in_stride apart: 0 where the state is one row of zeros.
template <int kTokens, int kVecs, typename In, typename Out>
COLUBER_INLINE void wkv6_sweep(const Wkv6Args& args, int64_t token, int64_t head, int64_t column, int lanes,
                               const In* in, int64_t in_stride, Out* out, int64_t out_stride) {
  const int64_t n = args.head_dim, width = args.num_heads * n, channel = head * n;
  const float *r[kTokens], *w[kTokens], *k[kTokens];
  Vec v[kTokens][kVecs], sum[kTokens][kVecs];
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) {
    const int64_t at = (token + t) * width + channel;
    r[t] = args.r + at;
    k[t] = args.k + at;
    w[t] = args.w + (token + t) * args.w_stride + channel;
    const Vec bonus = set1(wkv6_bonus(args, at, channel));
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      v[t][c] = wkv6_load(args.v + at + column + c * kLanes, lanes);
      sum[t][c] = bonus * v[t][c];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    Vec s[kVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      const In* from = in + i * in_stride + c * kLanes;
      s[c] = lanes == kLanes ? load_state(from) : load_state_n(from, lanes);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const Vec query = set1(r[t][i]), key = set1(k[t][i]), decay = set1(w[t][i]);
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) {
        sum[t][c] = fma(query, s[c], sum[t][c]);
        s[c] = fma(decay, s[c], key * v[t][c]);
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      Out* to = out + i * out_stride + c * kLanes;
      if (lanes == kLanes) {
        store_state(to, s[c]);
      } else {
        store_state_n(to, s[c], lanes);
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      float* y = args.y + (token + t) * width + channel + column + c * kLanes;
      if (lanes == kLanes) {
        store(y, sum[t][c]);
      } else {
        store_n(y, sum[t][c], lanes);
      }
    }
  }
}

struct Wkv6Task {
  int64_t row, head, begin, end;
  float* scratch;  // [N, kVecs vectors]
};

template <typename S, int kVecs>
inline void wkv6_columns(const Wkv6Args& args, const Wkv6Task& task, int64_t column, int lanes) {
  alignas(64) static const float kZeros[kWkv6Vecs * kLanes] = {};
  const int64_t n = args.head_dim, place = task.head * n * n + column;
  const S* source = static_cast<const S*>(args.state.source(task.row));
  S* target = static_cast<S*>(args.state.target(task.row)) + place;
  if (task.end - task.begin == 1) {
    if (source == nullptr) {
      wkv6_sweep<1, kVecs>(args, task.begin, task.head, column, lanes, kZeros, 0, target, n);
    } else {
      wkv6_sweep<1, kVecs>(args, task.begin, task.head, column, lanes, source + place, n, target, n);
    }
    return;
  }
  constexpr int64_t kWidth = kVecs * kLanes;
  const int whole = kVecs > 1 ? kLanes : lanes;
  for (int64_t i = 0; i < n; ++i) {
    for (int c = 0; c < kVecs; ++c) {
      const int64_t shift = c * kLanes;
      store(task.scratch + i * kWidth + shift,
            source == nullptr ? zero() : load_state_n(source + place + i * n + shift, whole));
    }
  }
  int64_t t = task.begin;
  for (; t + kWkv6Tokens <= task.end; t += kWkv6Tokens) {
    wkv6_sweep<kWkv6Tokens, kVecs>(args, t, task.head, column, lanes, task.scratch, kWidth, task.scratch, kWidth);
  }
  for (; t < task.end; ++t) {
    wkv6_sweep<1, kVecs>(args, t, task.head, column, lanes, task.scratch, kWidth, task.scratch, kWidth);
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int c = 0; c < kVecs; ++c) {
      store_state_n(target + i * n + c * kLanes, load(task.scratch + i * kWidth + c * kLanes), whole);
    }
  }
}

template <typename S>
inline void wkv6_head(const Wkv6Args& args, const Wkv6Task& task) {
  const int64_t n = args.head_dim;
  int64_t column = 0;
  for (; column + kWkv6Vecs * kLanes <= n; column += kWkv6Vecs * kLanes) {
    wkv6_columns<S, kWkv6Vecs>(args, task, column, kLanes);
  }
  for (; column < n; column += kLanes) {
    wkv6_columns<S, 1>(args, task, column, static_cast<int>(std::min<int64_t>(kLanes, n - column)));
  }
}

inline void wkv6(const Wkv6Args& args, ThreadPool& pool, Workspace& workspace) {
  const WorkspaceScope scope(workspace);
  const int64_t floats = args.head_dim * kWkv6Vecs * kLanes, n = args.head_dim;
  float* memory = workspace.take<float>(floats * pool.size());
  const int64_t tasks = args.rows * args.num_heads;
  const int64_t grain = args.query_start_loc == nullptr ? std::max<int64_t>(1, tasks / (8 * pool.size())) : 1;
  pool.parallel_for(tasks, grain, [&](int64_t first, int64_t last, int thread) {
    const SubnormalsAreZero guard;
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / args.num_heads, head = i % args.num_heads;
      const int64_t begin = args.query_start_loc == nullptr ? row : args.query_start_loc[row];
      const int64_t end = args.query_start_loc == nullptr ? row + 1 : args.query_start_loc[row + 1];
      if (args.state.is_null(row)) {
        for (int64_t t = begin; t < end; ++t) {
          std::memset(args.y + (t * args.num_heads + head) * n, 0, static_cast<size_t>(n) * sizeof(float));
        }
        continue;
      }
      const Wkv6Task task{row, head, begin, end, memory + thread * floats};
      by_state_type(args.state.dtype, [&](auto type) { wkv6_head<decltype(type)>(args, task); });
    }
  });
}
