// SPDX-License-Identifier: Apache-2.0
// The matrix products of a chunk of q tokens for a recurrence S <- decay * S + k v^T, y = q^T S, on packed scratch (SSD
// calls q, k, v by the names C, B, x). A query is a row of `c` [q, n], a key a column of `bt` [n, qp], values are rows
// of `x` [q, np], the state is `s` [n, np]; np and qp are padded to whole vectors with zeros. Register tiles of
// kTileRows x kTileCols vectors; rows are broadcast, columns are lanes.

inline constexpr int kTileRows = kRegisters == 32 ? 8 : 4;
inline constexpr int kTileCols = 2;

struct ChunkTile {
  int64_t q = 0;   // tokens
  int64_t n = 0;   // key size
  int64_t qp = 0;  // row stride of `bt`, `scores` and `weights`
  int64_t np = 0;  // row stride of `x`, `xs` and `s`
  int64_t p = 0;   // value size
  const float* c = nullptr;
  const float* bt = nullptr;
  float* scores = nullptr;   // [q, qp] c * bt
  float* weights = nullptr;  // [q, qp] scores times decay, 0 above the diagonal
  float* x = nullptr;        // values
  float* xs = nullptr;       // values times their decay to the end of the chunk
  float* s = nullptr;
  const float* row_scale = nullptr;  // [q] decay of the state up to and with token i
  float total = 1.0f;                // decay of the state over the chunk
  float* y = nullptr;                // [q, p], row stride y_stride
  int64_t y_stride = 0;
};

COLUBER_INLINE int64_t round_up_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// acc[r][c] += sum_k a[r * a_row + k * a_k] * b[k * b_k + c]
template <int kRows, int kCols>
COLUBER_INLINE void tile_multiply(Vec (&acc)[kRows][kCols], const float* a, int64_t a_row, int64_t a_k, const float* b,
                                  int64_t b_k, int64_t k) {
  for (int64_t i = 0; i < k; ++i) {
    Vec column[kCols];
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) column[c] = load(b + i * b_k + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec value = set1(a[r * a_row + i * a_k]);
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) acc[r][c] = fma(value, column[c], acc[r][c]);
    }
  }
}

struct ScoresTile {
  template <int kRows, int kCols>
  static inline void run(const ChunkTile& t, int64_t row, int64_t col) {
    if (col > row + kRows - 1) return;  // above the diagonal
    Vec acc[kRows][kCols] = {};
    tile_multiply(acc, t.c + row * t.n, t.n, 1, t.bt + col, t.qp, t.n);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) store(t.scores + (row + r) * t.qp + col + c * kLanes, acc[r][c]);
    }
  }
};

// y = row_scale * (c s) + weights x
struct OutputTile {
  template <int kRows, int kCols>
  static inline void run(const ChunkTile& t, int64_t row, int64_t col) {
    Vec acc[kRows][kCols] = {};
    tile_multiply(acc, t.c + row * t.n, t.n, 1, t.s + col, t.np, t.n);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec scale = set1(t.row_scale[row + r]);
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) acc[r][c] = acc[r][c] * scale;
    }
    tile_multiply(acc, t.weights + row * t.qp, t.qp, 1, t.x + col, t.np, row + kRows);
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
    tile_multiply(acc, t.bt + row * t.qp, t.qp, 1, t.xs + col, t.np, t.q);
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

// weights[i, j] = scores[i, j] * 2^(log2_decay[i] - log2_decay[j]) * scale[j] for j <= i, + diagonal for j = i; only
// differences
// <= 0 are ever raised. `log2_decay` and `scale` are [qp].
inline void chunk_weights(const ChunkTile& t, const float* log2_decay, const float* scale, float diagonal) {
  alignas(64) static const float kIota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Vec iota = load(kIota);
  for (int64_t i = 0; i < t.q; ++i) {
    const Vec here = set1(log2_decay[i]);
    float* out = t.weights + i * t.qp;
    for (int64_t j = 0; j < t.qp; j += kLanes) {
      if (j > i) {
        store(out + j, zero());
        continue;
      }
      const Vec decay = exp2_decay(min(here - load(log2_decay + j), zero()));
      Vec value = load(t.scores + i * t.qp + j) * decay * load(scale + j);
      if (j + kLanes > i) value = select_gt(iota, set1(static_cast<float>(i - j) + 0.5f), zero(), value);
      store(out + j, value);
    }
    out[i] += diagonal;
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
    for (int64_t c = 0; c < np; c += kLanes) {
      const int64_t left = n - c;
      const float* p = in + r * in_stride + c;
      store(out + r * np + c, left >= kLanes ? load(p) : load_n(p, static_cast<int>(left)));
    }
  }
}

// out[c, r] = in[r, c], [n, qp], zeros behind `rows`.
inline void chunk_pack_transposed(const float* in, int64_t in_stride, int64_t rows, int64_t n, float* out, int64_t qp) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) out[c * qp + r] = in[r * in_stride + c];
  }
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t r = rows; r < qp; ++r) out[c * qp + r] = 0.0f;
  }
}
