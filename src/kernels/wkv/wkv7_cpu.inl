// SPDX-License-Identifier: Apache-2.0
// Lanes are value channels: the state of a group of them is [keys][lanes], and no sum runs across lanes. One sweep a
// token: while a row is renewed, it adds to this token's output and to the projection that the next token needs. A
// group of several tokens works on a float32 copy that stays in the first-level cache; one token works in place.
#include "kernels/simd/vec_recurrent.inl"

inline constexpr int64_t kWkv7Block = 16;  // channels of a block of the state
// Vectors of channels whose sums fit in the registers together, in whole blocks.
inline constexpr int kWkv7Vecs = kRegisters == 32 ? 4 : 2;

// Where a group of channels lies: vector c's row of key k at base + c * vec_stride + k * row_stride.
struct Wkv7Place {
  int64_t base;
  int64_t vec_stride;
  int64_t row_stride;
};

template <int kVecs, typename S>
COLUBER_INLINE void wkv7_project(const float* a, int64_t n, const S* s, const Wkv7Place& place, int lanes,
                                 Vec (&sum)[kVecs]) {
#pragma GCC unroll 4
  for (int c = 0; c < kVecs; ++c) sum[c] = zero();
  for (int64_t k = 0; k < n; ++k) {
    const Vec weight = set1(a[k]);
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      const S* from = s + place.base + c * place.vec_stride + k * place.row_stride;
      sum[c] = fma(weight, lanes == kLanes ? load_state(from) : load_state_n(from, lanes), sum[c]);
    }
  }
}

// Token `at` / width of the channels behind `channel`; `sum` is its projection before and the next token's after.
template <int kVecs, bool kNext, typename In, typename Out>
COLUBER_INLINE void wkv7_token(const Wkv7Args& args, int64_t at, int64_t channel, int lanes, const In* in,
                               const Wkv7Place& from, Out* out, const Wkv7Place& to, Vec (&sum)[kVecs]) {
  const int64_t n = args.head_dim;
  const float *r = args.r + at, *w = args.w + at, *key = args.k + at, *b = args.b + at;
  const float* next = kNext ? args.a + at + args.num_heads * n : nullptr;
  Vec v[kVecs], y[kVecs], ahead[kVecs];
#pragma GCC unroll 4
  for (int c = 0; c < kVecs; ++c) {
    const float* value = args.v + at + channel + c * kLanes;
    v[c] = lanes == kLanes ? load(value) : load_n(value, lanes);
    y[c] = ahead[c] = zero();
  }
  for (int64_t k = 0; k < n; ++k) {
    const Vec decay = set1(w[k]), rate = set1(b[k]), newest = set1(key[k]), query = set1(r[k]);
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      const In* old = in + from.base + c * from.vec_stride + k * from.row_stride;
      Vec s = lanes == kLanes ? load_state(old) : load_state_n(old, lanes);
      s = fma(rate, sum[c], fma(newest, v[c], decay * s));
      Out* place = out + to.base + c * to.vec_stride + k * to.row_stride;
      if (lanes == kLanes) {
        store_state(place, s);
      } else {
        store_state_n(place, s, lanes);
      }
      y[c] = fma(query, s, y[c]);
      if constexpr (kNext) ahead[c] = fma(set1(next[k]), s, ahead[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kVecs; ++c) {
    float* result = args.y + at + channel + c * kLanes;
    if (lanes == kLanes) {
      store(result, y[c]);
    } else {
      store_n(result, y[c], lanes);
    }
    sum[c] = ahead[c];
  }
}

struct Wkv7Task {
  int64_t row, head, begin, end;
  float* scratch;  // [N, kWkv7Vecs vectors]
};

template <int kVecs, typename S>
inline void wkv7_one(const Wkv7Args& args, const Wkv7Task& task, int64_t at, int64_t channel, int lanes,
                     const Wkv7Place& place) {
  alignas(64) static const float kZeros[kLanes] = {};
  const S* source = static_cast<const S*>(args.state.source(task.row));
  S* target = static_cast<S*>(args.state.target(task.row));
  Vec sum[kVecs];
  if (source == nullptr) {
    for (int c = 0; c < kVecs; ++c) sum[c] = zero();
    wkv7_token<kVecs, false>(args, at, channel, lanes, kZeros, Wkv7Place{0, 0, 0}, target, place, sum);
  } else {
    wkv7_project<kVecs>(args.a + at, args.head_dim, source, place, lanes, sum);
    wkv7_token<kVecs, false>(args, at, channel, lanes, source, place, target, place, sum);
  }
}

// Tokens [begin, end) over the channels' state in scratch.
template <int kVecs>
inline void wkv7_tokens(const Wkv7Args& args, const Wkv7Task& task, int64_t begin, int64_t end, int64_t channel,
                        int lanes) {
  if (begin == end) return;
  const Wkv7Place local{0, kLanes, kVecs * kLanes};
  const int64_t n = args.head_dim, width = args.num_heads * n;
  float* s = task.scratch;
  Vec sum[kVecs];
  wkv7_project<kVecs>(args.a + begin * width + task.head * n, n, s, local, lanes, sum);
  for (int64_t t = begin; t + 1 < end; ++t) {
    wkv7_token<kVecs, true>(args, t * width + task.head * n, channel, lanes, s, local, s, local, sum);
  }
  wkv7_token<kVecs, false>(args, (end - 1) * width + task.head * n, channel, lanes, s, local, s, local, sum);
}

template <int kVecs, typename S>
inline void wkv7_channels(const Wkv7Args& args, const Wkv7Task& task, int64_t channel, int lanes) {
  const int64_t n = args.head_dim, block = channel / kWkv7Block * kWkv7Block;
  const int64_t row_stride = std::min(kWkv7Block, n - block);
  const int64_t vec_stride = kLanes == kWkv7Block ? n * kWkv7Block : kLanes;
  const Wkv7Place place{task.head * n * n + block * n + channel - block, vec_stride, row_stride};
  if (task.end - task.begin == 1) {
    const int64_t at = (task.begin * args.num_heads + task.head) * n;
    return wkv7_one<kVecs, S>(args, task, at, channel, lanes, place);
  }
  float* s = task.scratch;
  const S* source = static_cast<const S*>(args.state.source(task.row));
  for (int64_t k = 0; k < n; ++k) {
    for (int c = 0; c < kVecs; ++c) {
      const int64_t shift = place.base + c * vec_stride + k * row_stride;
      store(s + k * kVecs * kLanes + c * kLanes, source == nullptr ? zero() : load_state_n(source + shift, lanes));
    }
  }
  for (const RowPart part : RowParts(args.state, args.exports, task.row, task.begin, task.end)) {
    wkv7_tokens<kVecs>(args, task, part.begin, part.end, channel, lanes);
    S* target = static_cast<S*>(args.state.at(part.slot)) + place.base;
    for (int64_t k = 0; k < n; ++k) {
      for (int c = 0; c < kVecs; ++c)
        store_state_n(target + c * vec_stride + k * row_stride, load(s + (k * kVecs + c) * kLanes), lanes);
    }
  }
}

template <typename S>
inline void wkv7_head(const Wkv7Args& args, const Wkv7Task& task) {
  int64_t channel = 0;
  for (; channel + kWkv7Vecs * kLanes <= args.head_dim; channel += kWkv7Vecs * kLanes) {
    wkv7_channels<kWkv7Vecs, S>(args, task, channel, kLanes);
  }
  for (; channel < args.head_dim; channel += kLanes) {
    wkv7_channels<1, S>(args, task, channel, static_cast<int>(std::min<int64_t>(kLanes, args.head_dim - channel)));
  }
}

inline void wkv7(const Wkv7Args& args, ThreadPool& pool, Workspace& workspace) {
  const WorkspaceScope scope(workspace);
  const int64_t floats = args.head_dim * kWkv7Vecs * kLanes, n = args.head_dim;
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
      const Wkv7Task task{row, head, begin, end, memory + thread * floats};
      by_state_type(args.state.dtype, [&](auto type) { wkv7_head<decltype(type)>(args, task); });
    }
  });
}
