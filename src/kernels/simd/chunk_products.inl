// SPDX-License-Identifier: Apache-2.0
// The matrix products of a chunk of q tokens for a recurrence S <- decay * S + k v^T, y = q^T S, on packed scratch (SSD
// calls q, k, v by the names C, B, x). Queries are the columns of `ct` [n, qp], keys the rows of `b` [q, n] and the
// columns of `bt` [n, qp], values the rows of `x` [q, np], the state is `s` [n, np]; np and qp are padded to whole
// vectors with zeros. Register tiles of kTileRows x kTileCols vectors: rows are broadcast from neighbouring elements
// (eight row pointers would spill), columns are lanes. That is why scores and weights are held transposed.

#include "kernels/simd/transpose.inl"

inline constexpr int kTileRows = kRegisters == 32 ? 8 : 4;
inline constexpr int kTileCols = 2;

struct ChunkTile {
  int64_t q = 0;   // tokens
  int64_t n = 0;   // key size
  int64_t qp = 0;  // row stride of `ct`, `bt`, `scores` and `weights`
  int64_t np = 0;  // row stride of `x`, `xs` and `s`
  int64_t p = 0;   // value size
  const float* ct = nullptr;
  const float* b = nullptr;
  const float* bt = nullptr;
  float* scores = nullptr;   // [q, qp] key j by query i
  float* weights = nullptr;  // [q, qp] scores times decay, 0 where the key is the later one
  float* x = nullptr;        // values
  float* xs = nullptr;       // values times their decay to the end of the chunk
  float* s = nullptr;
  const float* row_scale = nullptr;  // [q] decay of the state up to and with token i
  float total = 1.0f;                // decay of the state over the chunk
  float* y = nullptr;                // [q, p], row stride y_stride
  int64_t y_stride = 0;
};

COLUBER_INLINE int64_t round_up_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// acc[r][c] += sum_k a[k * a_k + r] * b[k * b_k + c]
template <int kRows, int kCols>
COLUBER_INLINE void tile_multiply(Vec (&acc)[kRows][kCols], const float* a, int64_t a_k, const float* b, int64_t b_k,
                                  int64_t k) {
  for (int64_t i = 0; i < k; ++i) {
    Vec column[kCols];
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) column[c] = load(b + i * b_k + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec value = set1(a[i * a_k + r]);
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) acc[r][c] = fma(value, column[c], acc[r][c]);
    }
  }
}

struct ScoresTile {
  template <int kRows, int kCols>
  static inline void run(const ChunkTile& t, int64_t row, int64_t col) {
    if (col + kCols * kLanes <= row) return;  // queries before the keys
    Vec acc[kRows][kCols] = {};
    tile_multiply(acc, t.bt + row, t.qp, t.ct + col, t.qp, t.n);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) store(t.scores + (row + r) * t.qp + col + c * kLanes, acc[r][c]);
    }
  }
};

// y = row_scale * (c s) + weights^T x
struct OutputTile {
  template <int kRows, int kCols>
  static inline void run(const ChunkTile& t, int64_t row, int64_t col) {
    Vec acc[kRows][kCols] = {};
    tile_multiply(acc, t.ct + row, t.qp, t.s + col, t.np, t.n);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec scale = set1(t.row_scale[row + r]);
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) acc[r][c] = acc[r][c] * scale;
    }
    tile_multiply(acc, t.weights + row, t.qp, t.x + col, t.np, row + kRows);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) {
        const int64_t left = t.p - (col + c * kLanes);
        float* y = t.y + (row + r) * t.y_stride + col + c * kLanes;
        if (left >= kLanes) {
          store(y, acc[r][c]);
        } else {
          store_n(y, acc[r][c], static_cast<int>(left));
        }
      }
    }
  }
};

// s = total * s + b^T xs; rows are keys.
struct StateTile {
  template <int kRows, int kCols>
  static inline void run(const ChunkTile& t, int64_t row, int64_t col) {
    Vec acc[kRows][kCols];
    const Vec total = set1(t.total);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) acc[r][c] = total * load(t.s + (row + r) * t.np + col + c * kLanes);
    }
    tile_multiply(acc, t.b + row, t.n, t.xs + col, t.np, t.q);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) store(t.s + (row + r) * t.np + col + c * kLanes, acc[r][c]);
    }
  }
};

template <typename Kind, int kCols>
inline void chunk_column(const ChunkTile& t, int64_t rows, int64_t col) {
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) Kind::template run<kTileRows, kCols>(t, row, col);
  if constexpr (kTileRows > 4) {
    if (row + 4 <= rows) Kind::template run<4, kCols>(t, row, col), row += 4;
  }
  for (; row < rows; ++row) Kind::template run<1, kCols>(t, row, col);
}

// Every tile of rows x columns (columns padded to whole vectors).
template <typename Kind>
inline void chunk_product(const ChunkTile& t, int64_t rows, int64_t columns) {
  int64_t col = 0;
  for (; col + kTileCols * kLanes <= columns; col += kTileCols * kLanes) chunk_column<Kind, kTileCols>(t, rows, col);
  if (col < columns) chunk_column<Kind, 1>(t, rows, col);
}

// weights[j, i] = scores[j, i] * 2^(log2_decay[i] - log2_decay[j]) * scale[j] for i >= j, + diagonal for i = j; only
// differences <= 0 are ever raised. `log2_decay` is [qp], `scale` [q]. Whole vectors of queries before the key are not
// written: no tile reads them. `between(j)` runs at every key: callers fetch memory ahead there, a few lines at a time.
template <typename Between>
inline void chunk_weights(const ChunkTile& t, const float* log2_decay, const float* scale, float diagonal,
                          Between&& between) {
  alignas(64) static const float kIota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Vec iota = load(kIota);
  for (int64_t j = 0; j < t.q; ++j) {
    between(j);
    const Vec there = set1(log2_decay[j]), factor = set1(scale[j]);
    const float* in = t.scores + j * t.qp;
    float* out = t.weights + j * t.qp;
    for (int64_t i = j / kLanes * kLanes; i < t.q; i += kLanes) {
      const Vec decay = exp2_decay(min(load(log2_decay + i) - there, zero()));
      Vec value = load(in + i) * decay * factor;
      if (i < j) value = select_gt(set1(static_cast<float>(j - i) - 0.5f), iota, zero(), value);
      store(out + i, value);
    }
    out[j] += diagonal;
  }
}

// xs[i] = x[i] * scale[i] * 2^(log2_decay[q-1] - log2_decay[i])
inline void chunk_scale_values(const ChunkTile& t, const float* log2_decay, const float* scale, float* factors) {
  const Vec last = set1(log2_decay[t.q - 1]);
  for (int64_t i = 0; i < t.qp; i += kLanes) {
    store(factors + i, exp2_decay(min(last - load(log2_decay + i), zero())) * load(scale + i));
  }
  for (int64_t i = 0; i < t.q; ++i) {
    const Vec factor = set1(factors[i]);
    for (int64_t c = 0; c < t.np; c += kLanes) store(t.xs + i * t.np + c, load(t.x + i * t.np + c) * factor);
  }
}

// out[r, 0..np) = in[r, 0..n), zeros behind.
inline void chunk_pack_rows(const float* in, int64_t in_stride, int64_t rows, int64_t n, float* out, int64_t np) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(out + r * np, in + r * in_stride, static_cast<size_t>(n) * sizeof(float));
    for (int64_t c = n; c < np; ++c) out[r * np + c] = 0.0f;
  }
}

// out[c, r] = in[r, c], [n, qp], zeros behind `rows` up to whole vectors.
inline void chunk_pack_transposed(const float* in, int64_t in_stride, int64_t rows, int64_t n, float* out, int64_t qp) {
  transpose_into(in, in_stride, rows, n, out, qp);
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t r = rows; r < round_up_lanes(rows); ++r) out[c * qp + r] = 0.0f;
  }
}

// The cache lines of [p, p + n) floats.
COLUBER_INLINE void chunk_prefetch(const float* p, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) prefetch(p + i);
}
COLUBER_INLINE void chunk_prefetch_write(float* p, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) prefetch_write(p + i);
}
