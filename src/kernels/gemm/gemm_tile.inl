// SPDX-License-Identifier: Apache-2.0
// The register tile of the matrix products: kRows rows of A times kVectors vectors of outputs, over a range of k.

// The kinds of weight. `kElements`: stored elements that one step over k takes per output.
struct WeightF32 {
  using A = float;
  using Element = float;
  static constexpr int kElements = 1;
};
struct WeightF16 {
  using A = float;
  using Element = uint16_t;
  static constexpr int kElements = 1;
};
struct WeightBf16 {
  using A = float;
  using Element = uint16_t;
  static constexpr int kElements = 2;
};
// Interleaved blocks, which a tile multiplies as float32 after it has expanded a few k of them.
struct WeightBlocks {
  using A = float;
  using Element = std::byte;
  static constexpr int kElements = 0;
};
struct WeightBf16Dot {  // A in pairs too; k counts pairs
  using A = uint32_t;
  using Element = uint16_t;
  static constexpr int kElements = 2;
};

template <typename W>
struct Panel {
  const typename W::Element* data;
  int64_t width;  // outputs between successive k
};

// How a tile finds row r, element k of A.
template <typename A>
struct StridedRows {
  const A* a;
  int64_t lda;
  COLUBER_INLINE A at(int r, int64_t k) const { return a[r * lda + k]; }
};
// k by k, the tile's rows side by side: one stream, and no pointer a row.
template <typename A, int kRows>
struct PackedRows {
  const A* a;
  COLUBER_INLINE A at(int r, int64_t k) const { return a[k * kRows + r]; }
};

template <typename W, int kRows, int kVectors>
struct Tile {
  Vec sum[kRows][kVectors];

  // All loops over the sums are unrolled: an array that is indexed by a variable would live in memory.
  COLUBER_INLINE void clear() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = zero();
    }
  }

  template <typename Rows>
  COLUBER_INLINE void add(Rows rows, int64_t k, int v, Vec w) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r][v] = fma(set1(rows.at(r, k)), w, sum[r][v]);
  }

  static COLUBER_INLINE auto load_weights(const typename W::Element* at) {
    if constexpr (std::is_same_v<W, WeightF32>) {
      return load(at);
    } else if constexpr (std::is_same_v<W, WeightF16>) {
      return load_f16(at);
    } else {
      return load_bf16_pairs(at);
    }
  }

  // One k of kVectors vectors. In this order one register holds an element of A at a time; the other order keeps all
  // rows' and spills on AVX2.
  template <typename Rows>
  COLUBER_INLINE void add_all(Rows rows, int64_t k, const Vec* weights) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec a = set1(rows.at(r, k));
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(a, weights[v], sum[r][v]);
    }
  }

  // One step: every vector of outputs, one k (a pair for bfloat16).
  template <bool kSecond, typename Rows>
  COLUBER_INLINE void step(Rows rows, int64_t k, const typename W::Element* w) {
    if constexpr (std::is_same_v<W, WeightBf16> && kVectors > 2) {
      // Few rows, wide: no room to widen all vectors first.
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const VecPairs pairs = load_weights(w + v * kLanes * 2);
        add(rows, k, v, first_of_pairs(pairs));
        if constexpr (kSecond) add(rows, k + 1, v, second_of_pairs(pairs));
      }
    } else if constexpr (std::is_same_v<W, WeightBf16>) {
      Vec weights[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) weights[v] = first_of_pairs(load_weights(w + v * kLanes * 2));
      add_all(rows, k, weights);
      if constexpr (!kSecond) return;
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) weights[v] = second_of_pairs(load_weights(w + v * kLanes * 2));
      add_all(rows, k + 1, weights);
    } else if constexpr (std::is_same_v<W, WeightBf16Dot>) {
      VecPairs weights[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) weights[v] = load_weights(w + v * kLanes * 2);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const VecPairs a = set1_bf16_pair(rows.at(r, k));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = dot_bf16(sum[r][v], a, weights[v]);
      }
    } else {
      Vec weights[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) weights[v] = load_weights(w + v * kLanes);
      add_all(rows, k, weights);
    }
  }

  // `kStream`: the panel comes from memory; what lies `ahead` bytes further on is asked for.
  template <bool kStream, typename Rows>
  COLUBER_INLINE void multiply(Rows rows, int64_t count, Panel<W> panel, int64_t ahead) {
    constexpr int kPerStep = std::is_same_v<W, WeightBf16> ? 2 : 1;
    constexpr int kLine = 64 / static_cast<int>(sizeof(typename W::Element));
    const typename W::Element* w = panel.data;
    const int64_t advance = panel.width * W::kElements;
    int64_t k = 0;
    for (; k + kPerStep <= count; k += kPerStep, w += advance) {
      if constexpr (kStream) {
#pragma GCC unroll 16
        for (int i = 0; i < kVectors * kLanes * W::kElements; i += kLine) {
          prefetch(reinterpret_cast<const char*>(w + i) + ahead);
        }
      }
      step<true>(rows, k, w);
    }
    if (k < count) step<false>(rows, k, w);
  }

  COLUBER_INLINE void load_partial(const float* partial) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load(partial + (r * kVectors + v) * kLanes);
    }
    // The next tile's, while this one multiplies.
    const float* next = partial + kRows * kVectors * kLanes;
#pragma GCC unroll 4
    for (int i = 0; i < kRows * kVectors * kLanes; i += 16) prefetch(next + i);
  }
  COLUBER_INLINE void store_partial(float* partial) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) store(partial + (r * kVectors + v) * kLanes, sum[r][v]);
    }
  }

  // C is far apart and often in no cache: its lines are asked for before the products that fill them.
  static COLUBER_INLINE void prefetch_output(float* c, int64_t ldc, int rows) {
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
      for (int x = 0; x < kVectors * kLanes; x += 16) prefetch_write(c + r * ldc + x);
    }
  }
  // To the first `rows` rows from `row`, columns from `column`.
  COLUBER_INLINE void finish(const GemmArgs& args, int64_t row, int64_t column, int rows) const {
    float* c = args.c + row * args.ldc + column;
    const int64_t columns = args.w->n() - column;
    const float* bias = args.bias == nullptr ? nullptr : args.bias + column;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const int n = static_cast<int>(std::clamp<int64_t>(columns - v * kLanes, 0, kLanes));
      if (n == kLanes) {
        finish_vector(args, c + v * kLanes, bias == nullptr ? nullptr : bias + v * kLanes, v, rows);
      } else if (n > 0) {
        finish_part(args, c + v * kLanes, bias == nullptr ? nullptr : bias + v * kLanes, v, rows, n);
      }
    }
  }

 private:
  COLUBER_INLINE void finish_vector(const GemmArgs& args, float* c, const float* bias, int v, int rows) const {
    const Vec b = bias == nullptr ? zero() : load(bias);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      float* at = c + r * args.ldc;
      Vec x = bias == nullptr ? sum[r][v] : sum[r][v] + b;
      if (args.accumulate) x = x + load(at);
      store(at, x);
    }
  }
  COLUBER_INLINE void finish_part(const GemmArgs& args, float* c, const float* bias, int v, int rows, int n) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      float* at = c + r * args.ldc;
      Vec x = sum[r][v];
      if (bias != nullptr) x = x + load_n(bias, n);
      if (args.accumulate) x = x + load_n(at, n);
      store_n(at, x, n);
    }
  }
};

// A slice of the product for one call of a tile.
template <typename W>
struct Slice {
  const GemmArgs* args = nullptr;
  const typename W::A* a = nullptr;  // first row of the tile, first k of the block
  int64_t lda = 0;                   // of strided rows
  int64_t count = 0;                 // of k, or of pairs
  Panel<W> panel = {};
  int64_t ahead = 0;  // bytes to what a streaming tile asks for
  PanelBlocks blocks = {};
  int64_t strip = 0;  // of the blocks' panel: the tile's first
  int64_t row = 0, column = 0;
  int rows = 0;              // that are written: a tile may be higher
  float* partial = nullptr;  // the tile's sums; used where the block is not the whole of K
  bool begins = true, ends = true;
};

inline const PanelFunctions& panel_functions(const PackedMatrix& w) {
  return kLanes == 16 ? w.panel_form()->avx512 : w.panel_form()->avx2;
}

// So few k at a time that the processor has the next ones expanded while it still multiplies.
template <int kRows, typename TileOfFloats>
void multiply_blocks(TileOfFloats& tile, const Slice<WeightBlocks>& s, StridedRows<float> rows, int64_t columns) {
  alignas(64) float expanded[PanelForm::kStep * PackedMatrix::kPanel];
  const auto [expand, multiply] = panel_functions(*s.args->w);
  if (kRows == 1 && multiply != nullptr) {
    multiply(s.blocks, s.strip, columns / PanelForm::kRows, rows.a, s.count, expanded);
    return tile.load_partial(expanded);
  }
  for (int64_t k = 0; k < s.count; k += PanelForm::kStep, rows.a += PanelForm::kStep) {
    expand(s.blocks, s.strip, columns / PanelForm::kRows, k, PanelForm::kStep, expanded);
    tile.template multiply<false>(rows, PanelForm::kStep, {expanded, columns}, 0);
  }
}

template <typename W, int kRows, int kVectors, bool kStream, typename Rows>
void run_tile(const Slice<W>& s, Rows rows) {
  constexpr bool kBlocks = std::is_same_v<W, WeightBlocks>;
  Tile<std::conditional_t<kBlocks, WeightF32, W>, kRows, kVectors> tile;
  if (s.begins) {
    tile.clear();
  } else {
    tile.load_partial(s.partial);
  }
  if (s.ends) tile.prefetch_output(s.args->c + s.row * s.args->ldc + s.column, s.args->ldc, s.rows);
  if constexpr (kBlocks) {
    multiply_blocks<kRows>(tile, s, rows, kVectors * kLanes);
  } else {
    tile.template multiply<kStream>(rows, s.count, s.panel, s.ahead);
  }
  if (s.ends) {
    tile.finish(*s.args, s.row, s.column, s.rows);
  } else {
    tile.store_partial(s.partial);
  }
}
