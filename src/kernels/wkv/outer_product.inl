// SPDX-License-Identifier: Apache-2.0
// The sweep of recurrences that add an outer product a token to a decayed matrix S [K, V]:
//
//   y[v] = sum_k r[k] S[k, v] + bonus v[v]        S[k, v] = w[k] S[k, v] + k[k] v[v]
//
// Lanes are value columns, which lie contiguous in the state: no sum runs across lanes. A group of columns is copied to
// scratch that stays in the first-level cache, and each row of it is read and written once for several tokens; one
// token alone sweeps over the state in place. An element's roundings are the same however tokens are grouped.
#include "kernels/simd/vec_recurrent.inl"

// Tokens and vectors of columns whose sums and values fit in the registers together.
inline constexpr int kOuterTokens = kRegisters == 32 ? 4 : 2;
inline constexpr int kOuterVecs = 2;

struct OuterToken {
  const float *r, *w, *k;  // [K]; w of one element where w_step is 0
  const float* v;          // [V]
  float* y;                // [V]
  float bonus;
};

struct OuterHead {
  int64_t keys = 0, values = 0;
  int64_t w_step = 1;  // 0: one decay for all keys
  StateSlots state;
  StateExports exports;
  int64_t place = 0;  // of S in a slot, in elements
  int64_t row = 0;
  int64_t begin = 0, end = 0;  // its tokens
  float* scratch = nullptr;    // [K, kOuterVecs vectors]
};

inline int64_t outer_scratch_floats(int64_t keys) { return keys * kOuterVecs * kLanes; }

// Columns [column, column + kVecs vectors) of kTokens tokens; the last vector has `lanes` lanes. Rows of `in` lie
// in_stride apart: 0 where the state is one row of zeros.
template <int kTokens, int kVecs, typename In, typename Out>
COLUBER_INLINE void outer_sweep(const OuterToken (&token)[kTokens], const OuterHead& head, int64_t column, int lanes,
                                const In* in, int64_t in_stride, Out* out, int64_t out_stride) {
  Vec v[kTokens][kVecs], sum[kTokens][kVecs];
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) {
    const Vec bonus = set1(token[t].bonus);
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      const float* value = token[t].v + column + c * kLanes;
      v[t][c] = lanes == kLanes ? load(value) : load_n(value, lanes);
      sum[t][c] = bonus * v[t][c];
    }
  }
  for (int64_t i = 0; i < head.keys; ++i) {
    Vec s[kVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      const In* from = in + i * in_stride + c * kLanes;
      s[c] = lanes == kLanes ? load_state(from) : load_state_n(from, lanes);
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const Vec query = set1(token[t].r[i]), key = set1(token[t].k[i]), decay = set1(token[t].w[i * head.w_step]);
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
      float* y = token[t].y + column + c * kLanes;
      if (lanes == kLanes) {
        store(y, sum[t][c]);
      } else {
        store_n(y, sum[t][c], lanes);
      }
    }
  }
}

// Between the state and scratch, a row of kVecs vectors at a time.
template <int kVecs, typename S>
inline void outer_read(const OuterHead& head, const S* source, int lanes) {
  for (int64_t i = 0; i < head.keys; ++i) {
    for (int c = 0; c < kVecs; ++c) {
      store(head.scratch + (i * kVecs + c) * kLanes,
            source == nullptr ? zero() : load_state_n(source + i * head.values + c * kLanes, lanes));
    }
  }
}
template <int kVecs, typename S>
inline void outer_write(const OuterHead& head, S* target, int lanes) {
  for (int64_t i = 0; i < head.keys; ++i) {
    for (int c = 0; c < kVecs; ++c) {
      store_state_n(target + i * head.values + c * kLanes, load(head.scratch + (i * kVecs + c) * kLanes), lanes);
    }
  }
}

// `token_at(t)` is token t of the head.
template <typename S, int kVecs, typename TokenAt>
inline void outer_columns(const OuterHead& head, int64_t column, int lanes, TokenAt&& token_at) {
  alignas(64) static const float kZeros[kOuterVecs * kLanes] = {};
  const S* source = static_cast<const S*>(head.state.source(head.row));
  if (source != nullptr) source += head.place + column;
  if (head.end - head.begin == 1) {
    S* target = static_cast<S*>(head.state.target(head.row)) + head.place + column;
    const OuterToken token[1] = {token_at(head.begin)};
    if (source == nullptr) {
      outer_sweep<1, kVecs>(token, head, column, lanes, kZeros, 0, target, head.values);
    } else {
      outer_sweep<1, kVecs>(token, head, column, lanes, source, head.values, target, head.values);
    }
    return;
  }
  constexpr int64_t kWidth = kVecs * kLanes;
  outer_read<kVecs>(head, source, lanes);
  for (const RowPart part : RowParts(head.state, head.exports, head.row, head.begin, head.end)) {
    int64_t t = part.begin;
    for (; t + kOuterTokens <= part.end; t += kOuterTokens) {
      OuterToken tokens[kOuterTokens];
      for (int i = 0; i < kOuterTokens; ++i) tokens[i] = token_at(t + i);
      outer_sweep<kOuterTokens, kVecs>(tokens, head, column, lanes, head.scratch, kWidth, head.scratch, kWidth);
    }
    for (; t < part.end; ++t) {
      const OuterToken token[1] = {token_at(t)};
      outer_sweep<1, kVecs>(token, head, column, lanes, head.scratch, kWidth, head.scratch, kWidth);
    }
    outer_write<kVecs>(head, static_cast<S*>(head.state.at(part.slot)) + head.place + column, lanes);
  }
}

// Columns that one task may take alone.
inline constexpr int64_t kOuterColumns = kOuterVecs * kLanes;
inline int64_t outer_groups(int64_t values) { return (values + kOuterColumns - 1) / kOuterColumns; }

template <typename S, typename TokenAt>
inline void outer_group(const OuterHead& head, int64_t group, TokenAt&& token_at) {
  int64_t column = group * kOuterColumns;
  if (column + kOuterColumns <= head.values) return outer_columns<S, kOuterVecs>(head, column, kLanes, token_at);
  for (; column < head.values; column += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, head.values - column));
    outer_columns<S, 1>(head, column, lanes, token_at);
  }
}
