// SPDX-License-Identifier: Apache-2.0
// Matrix products on packed panels. One register tile serves everything: kRows rows of A times kVectors vectors of
// outputs, over a range of k. A few rows (kDirectRows) run it over all of K straight from the packed weight; more rows
// run it over blocks of K whose panel slice, widened to float32 once, stays in the first-level cache, with the sums
// between blocks in scratch (exact, so the chain over k is the same).

inline constexpr bool kWide = kLanes == 16;
inline constexpr int kTileRows = 6;  // 6 x 64 or 6 x 16: 24 or 12 accumulators
inline constexpr int kTileVectors = kWide ? 4 : 2;
inline constexpr int kPanelVectors = PackedMatrix::kPanel / kLanes;
inline constexpr int kStepVectors = PackedMatrix::kPanelStep / kLanes;  // the tile of the last, narrower panel
inline constexpr int kDirectRows = kWide ? kTileRows : 1;               // that fit beside kPanelVectors in registers
inline constexpr int64_t kBlockK =
    256;  // at most: 64 KiB of panel in the second-level cache, or 16 KiB of tile column in the first
inline constexpr int64_t kBlockRows = 510;
inline constexpr int64_t kPrefetchBytes = 2048;

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

template <typename W, int kRows, int kVectors>
struct Tile {
  Vec sum[kRows][kVectors];

  // All loops over the sums are unrolled: an array that is indexed by a variable would live in memory.
  COLUBER_INLINE void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = zero();
    }
  }

  COLUBER_INLINE void add(const float* a, int64_t lda, int64_t k, int v, Vec w) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r][v] = fma(set1(a[r * lda + k]), w, sum[r][v]);
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

  // One step: every vector of outputs, one k (a pair for bfloat16).
  template <bool kSecond>
  COLUBER_INLINE void step(const typename W::A* a, int64_t lda, int64_t k, const typename W::Element* w) {
    if constexpr (std::is_same_v<W, WeightBf16>) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const VecPairs pairs = load_weights(w + v * kLanes * 2);
        add(a, lda, k, v, first_of_pairs(pairs));
        if constexpr (kSecond) add(a, lda, k + 1, v, second_of_pairs(pairs));
      }
    } else {
      // In this order one register holds an element of A at a time; the other order keeps all rows' and spills on AVX2.
      decltype(load_weights(w)) weights[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) weights[v] = load_weights(w + v * kLanes * W::kElements);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          if constexpr (std::is_same_v<W, WeightBf16Dot>) {
            sum[r][v] = dot_bf16(sum[r][v], set1_bf16_pair(a[r * lda + k]), weights[v]);
          } else {
            sum[r][v] = fma(set1(a[r * lda + k]), weights[v], sum[r][v]);
          }
        }
      }
    }
  }

  // `kStream`: the panel comes from memory, in order.
  template <bool kStream>
  COLUBER_INLINE void multiply(const typename W::A* a, int64_t lda, int64_t count, Panel<W> panel) {
    constexpr int kPerStep = std::is_same_v<W, WeightBf16> ? 2 : 1;
    constexpr int kLine = 64 / static_cast<int>(sizeof(typename W::Element));
    const typename W::Element* w = panel.data;
    const int64_t advance = panel.width * W::kElements;
    int64_t k = 0;
    for (; k + kPerStep <= count; k += kPerStep, w += advance) {
      if constexpr (kStream) {
#pragma GCC unroll 8
        for (int i = 0; i < kVectors * kLanes * W::kElements; i += kLine) {
          prefetch(reinterpret_cast<const char*>(w + i) + kPrefetchBytes);
        }
      }
      step<true>(a, lda, k, w);
    }
    if (k < count) step<false>(a, lda, k, w);
  }

  COLUBER_INLINE void load_partial(const float* partial) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load(partial + r * PackedMatrix::kPanel + v * kLanes);
    }
  }
  COLUBER_INLINE void store_partial(float* partial) const {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) store(partial + r * PackedMatrix::kPanel + v * kLanes, sum[r][v]);
    }
  }

  // C is far apart and often in no cache: its lines are asked for before the products that fill them.
  static COLUBER_INLINE void prefetch_output(const GemmArgs& args, int64_t row, int64_t column) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int x = 0; x < kVectors * kLanes; x += 16) prefetch_write(args.c + (row + r) * args.ldc + column + x);
    }
  }
  // To rows from `row`, columns from `column`.
  COLUBER_INLINE void finish(const GemmArgs& args, int64_t row, int64_t column) {
    float* c = args.c + row * args.ldc + column;
    const int64_t columns = args.w->n() - column;
    const float* bias = args.bias == nullptr ? nullptr : args.bias + column;
    if (columns < kVectors * kLanes) return finish_narrow(args, c, bias, columns);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec b = bias == nullptr ? zero() : load(bias + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        float* at = c + r * args.ldc + v * kLanes;
        Vec x = bias == nullptr ? sum[r][v] : sum[r][v] + b;
        if (args.accumulate) x = x + load(at);
        store(at, x);
      }
    }
  }
  void finish_narrow(const GemmArgs& args, float* c, const float* bias, int64_t columns) const {
    for (int v = 0; v * kLanes < columns; ++v) {
      const int n = static_cast<int>(std::min<int64_t>(kLanes, columns - v * kLanes));
      for (int r = 0; r < kRows; ++r) {
        float* at = c + r * args.ldc + v * kLanes;
        Vec x = sum[r][v];
        if (bias != nullptr) x = x + load_n(bias + v * kLanes, n);
        if (args.accumulate) x = x + load_n(at, n);
        store_n(at, x, n);
      }
    }
  }
};

// A slice of the product for one call of a tile.
template <typename W>
struct Slice {
  const GemmArgs* args;
  const typename W::A* a;  // first row of the tile, first k of the block
  int64_t lda;
  int64_t count;  // of k, or of pairs
  Panel<W> panel;
  int64_t row, column;
  float* partial;  // [kTileRows, kPanel]; used where the block is not the whole of K
  bool begins, ends;
};

template <typename W, int kRows, int kVectors, bool kStream>
void run_tile(const Slice<W>& s) {
  Tile<W, kRows, kVectors> tile;
  if (s.begins) {
    tile.clear();
  } else {
    tile.load_partial(s.partial);
  }
  if (s.ends) tile.prefetch_output(*s.args, s.row, s.column);
  tile.template multiply<kStream>(s.a, s.lda, s.count, s.panel);
  if (s.ends) {
    tile.finish(*s.args, s.row, s.column);
  } else {
    tile.store_partial(s.partial);
  }
}

template <typename W, int kVectors, bool kStream>
void run_rows(const Slice<W>& slice, int64_t rows) {
  static_assert(kTileRows == 6);
  switch (rows) {
    case 1:
      return run_tile<W, 1, kVectors, kStream>(slice);
    case 2:
      return run_tile<W, 2, kVectors, kStream>(slice);
    case 3:
      return run_tile<W, 3, kVectors, kStream>(slice);
    case 4:
      return run_tile<W, 4, kVectors, kStream>(slice);
    case 5:
      return run_tile<W, 5, kVectors, kStream>(slice);
    default:
      return run_tile<W, 6, kVectors, kStream>(slice);
  }
}

// A, or its pairs: row r of the block of k that begins at k0 lies at a + k0 / block_k * block_stride + r * lda.
template <typename W>
struct Operand {
  const typename W::A* a;
  int64_t lda;
  int64_t k;  // K, or the number of pairs
  int64_t block_k;
  int64_t block_stride;
};

template <typename W>
COLUBER_INLINE Panel<W> panel_of(const PackedMatrix& w, int64_t panel) {
  return {reinterpret_cast<const typename W::Element*>(w.data()) + w.panel_offset(panel), w.panel_width(panel)};
}

// At most kDirectRows rows: the weight is read once, in the order of memory.
template <typename W>
void run_direct(const GemmArgs& args, const Operand<W>& operand, ThreadPool& pool) {
  constexpr int64_t kChunkBytes = 64 << 10;
  const PackedMatrix& w = *args.w;
  const int64_t panel_bytes = w.bytes() / w.num_panels();
  const int64_t grain = std::clamp<int64_t>(kChunkBytes / std::max<int64_t>(panel_bytes, 1), 1,
                                            std::max<int64_t>(w.num_panels() / (4 * pool.size()), 1));
  pool.parallel_for(w.num_panels(), grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      Slice<W> slice = {&args,   operand.a, operand.lda, operand.k, panel_of<W>(w, p), 0, p * PackedMatrix::kPanel,
                        nullptr, true,      true};
      if (slice.panel.width == PackedMatrix::kPanel) {
        if constexpr (kDirectRows == 1) {
          run_tile<W, 1, kPanelVectors, true>(slice);
        } else {
          run_rows<W, kPanelVectors, true>(slice, args.m);
        }
        continue;
      }
      const int64_t width = slice.panel.width;
      for (int64_t j = 0; j < width; j += PackedMatrix::kPanelStep) {
        run_rows<W, kStepVectors, false>(slice, args.m);
        slice.panel.data += PackedMatrix::kPanelStep * W::kElements;
        slice.column += PackedMatrix::kPanelStep;
      }
    }
  });
}

// `count` of k of a panel as float32, cut into tile columns: [width / columns][count][columns].
template <typename Stored>
void widen_block(Panel<Stored> panel, int64_t count, int64_t columns, float* out) {
  constexpr bool kPairs = Stored::kElements == 2;
  for (int64_t j = 0; j < panel.width; j += columns, out += count * columns) {
    const typename Stored::Element* from = panel.data + j * Stored::kElements;
    for (int64_t i = 0; i < count; i += kPairs ? 2 : 1, from += panel.width * Stored::kElements) {
      float* to = out + i * columns;
      prefetch(reinterpret_cast<const char*>(from) + kPrefetchBytes);
      for (int64_t x = 0; x < columns; x += kLanes) {
        if constexpr (std::is_same_v<Stored, WeightF32>) {
          store(to + x, load(from + x));
        } else if constexpr (!kPairs) {
          store(to + x, load_f16(from + x));
        } else {
          const VecPairs pairs = load_bf16_pairs(from + 2 * x);
          store(to + x, first_of_pairs(pairs));
          if (i + 1 < count) store(to + columns + x, second_of_pairs(pairs));
        }
      }
    }
  }
}

struct BlockScratch {
  float* widened;  // [kBlockK, kPanel]
  float* partial;  // [block rows, kPanel]
};

// Asks for the memory of the block after this one, a little with each tile: it arrives while the tiles multiply.
class Fetcher {
 public:
  Fetcher(const void* from, int64_t bytes, int64_t tiles)
      : at_(static_cast<const char*>(from)), lines_(std::min((bytes / 64 + tiles - 1) / tiles, kMostLines)) {}
  COLUBER_INLINE void fetch() {
    for (int64_t i = 0; i < lines_; ++i, at_ += 64) prefetch_l2(at_);
  }

 private:
  static constexpr int64_t kMostLines = 128;
  const char* at_;
  int64_t lines_;
};

// Rows row_begin..row_end of one panel. `W` is what the tile multiplies, `Stored` what the panel holds.
template <typename Stored, typename W>
void run_block(const GemmArgs& args, const Operand<W>& operand, int64_t p, int64_t row_begin, int64_t row_end,
               BlockScratch scratch) {
  // On AVX2 a tile column of the packed panel would touch a quarter of the cache's sets: it is copied out.
  constexpr bool kInPlace = std::is_same_v<Stored, W> && (kWide || std::is_same_v<W, WeightBf16Dot>);
  constexpr int64_t kDepth = std::is_same_v<Stored, WeightBf16> ? 2 : 1;  // of k in a stored row
  const Panel<Stored> stored = panel_of<Stored>(*args.w, p);
  const bool whole = stored.width == PackedMatrix::kPanel;
  const int64_t columns = whole ? kTileVectors * kLanes : PackedMatrix::kPanelStep;
  // Tiles of equal height: 8 rows are 4 and 4, not 6 and 2.
  const int64_t rows_of_tiles = (row_end - row_begin + kTileRows - 1) / kTileRows;
  const int64_t height = (row_end - row_begin + rows_of_tiles - 1) / rows_of_tiles;
  const int64_t tiles = rows_of_tiles * (stored.width / columns);
  for (int64_t k = 0; k < operand.k; k += operand.block_k) {
    const int64_t count = std::min(operand.block_k, operand.k - k);
    const typename Stored::Element* block = stored.data + k / kDepth * stored.width * Stored::kElements;
    const int64_t elements = count / kDepth * stored.width * Stored::kElements;
    Fetcher fetcher(block + elements, elements * static_cast<int64_t>(sizeof(*block)), tiles);
    if constexpr (!kInPlace) widen_block<Stored>({block, stored.width}, count, columns, scratch.widened);
    const typename W::A* a = operand.a + k / operand.block_k * operand.block_stride;
    for (int64_t j = 0; j < stored.width; j += columns) {
      Slice<W> slice = {&args,   nullptr, operand.lda,           count, {}, 0, p * PackedMatrix::kPanel + j,
                        nullptr, k == 0,  k + count == operand.k};
      if constexpr (kInPlace) {
        slice.panel = {block + j * W::kElements, stored.width};
      } else {
        slice.panel = {scratch.widened + j * count, columns};
      }
      for (int64_t row = row_begin; row < row_end; row += height) {
        slice.a = a + row * operand.lda;
        slice.row = row;
        slice.partial = scratch.partial + (row - row_begin) * PackedMatrix::kPanel + j;
        const int64_t rows = std::min(height, row_end - row);
        fetcher.fetch();
        if (!whole) {
          run_rows<W, kStepVectors, false>(slice, rows);
        } else if (kInPlace && row == row_begin) {
          run_rows<W, kTileVectors, kInPlace>(slice, rows);  // the first to read the block
        } else {
          run_rows<W, kTileVectors, false>(slice, rows);
        }
      }
    }
  }
}

// Cuts K into equal blocks and, where A is read often, copies it so that what a tile reads lies together: rows of 4 KiB
// and more apart cost every tile its first touches (measured: 8 % of the time).
template <typename W>
Operand<W> make_blocks(const Operand<W>& whole, int64_t m, int64_t panels, ThreadPool& pool, Workspace& workspace) {
  constexpr int64_t kFewestPanels = 4;
  // With few rows each widened value is read so seldom that it must still be in the first-level cache
  // (measured on bfloat16, 8 rows: 1.5 times the speed).
  constexpr int64_t kFewRows = 4 * kTileRows, kShortBlockK = 64;
  const int64_t longest = m <= kFewRows ? kShortBlockK : kBlockK;
  const int64_t blocks = (whole.k + longest - 1) / longest;
  const int64_t block_k = ((whole.k + blocks - 1) / blocks + 1) / 2 * 2;
  if (panels < kFewestPanels || blocks == 1 || m <= kFewRows) return {whole.a, whole.lda, whole.k, block_k, block_k};
  using A = typename W::A;
  A* copy = workspace.take<A>(blocks * m * block_k);
  pool.parallel_for(m, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t k = block * block_k, count = std::min(block_k, whole.k - k);
        std::memcpy(copy + (block * m + row) * block_k, whole.a + row * whole.lda + k,
                    static_cast<size_t>(count) * sizeof(A));
      }
    }
  });
  return {copy, block_k, whole.k, block_k, m * block_k};
}

template <typename Stored, typename W>
void run_blocked(const GemmArgs& args, const Operand<W>& whole, ThreadPool& pool, Workspace& workspace) {
  // Enough chunks that a thread which loses its core for a while costs the others little, none so short that widening
  // shows.
  constexpr int64_t kChunksPerThread = 8, kFewestRows = 8 * kTileRows;
  const int64_t panels = args.w->num_panels();
  const int64_t wanted = (kChunksPerThread * pool.size() + panels - 1) / panels;
  int64_t block = std::clamp((args.m + wanted - 1) / wanted, kFewestRows, kBlockRows);
  block = (block + kTileRows - 1) / kTileRows * kTileRows;
  const int64_t blocks = (args.m + block - 1) / block;

  WorkspaceScope scope(workspace);
  const Operand<W> operand = make_blocks(whole, args.m, panels, pool, workspace);
  const int64_t widened = kBlockK * PackedMatrix::kPanel, each = widened + block * PackedMatrix::kPanel;
  float* scratch = workspace.take<float>(each * pool.size());
  pool.parallel_for(panels * blocks, 1, [&](int64_t begin, int64_t end, int thread) {
    float* own = scratch + each * thread;
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t row = chunk % blocks * block;
      run_block<Stored, W>(args, operand, chunk / blocks, row, std::min(args.m, row + block), {own, own + widened});
    }
  });
}

template <typename Stored>
void run(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  if (args.m <= kDirectRows) return run_direct<Stored>(args, {args.a, args.lda, args.w->k(), 0, 0}, pool);
  run_blocked<Stored, WeightF32>(args, {args.a, args.lda, args.w->k(), 0, 0}, pool, workspace);
}

inline void multiply_f32(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  switch (args.w->dtype()) {
    case DType::kBFloat16:
      return run<WeightBf16>(args, pool, workspace);
    case DType::kFloat16:
      return run<WeightF16>(args, pool, workspace);
    default:
      return run<WeightF32>(args, pool, workspace);
  }
}

// Bfloat16 weights; A is rounded to bfloat16 first, [M][K/2 pairs].
inline void multiply_bf16(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  WorkspaceScope scope(workspace);
  const int64_t pairs = args.w->padded_k() / 2, whole = args.w->k() / kLanes * kLanes;
  uint16_t* rounded = workspace.take<uint16_t>(args.m * 2 * pairs);
  pool.parallel_for(args.m, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = args.a + row * args.lda;
      uint16_t* to = rounded + row * 2 * pairs;
      for (int64_t k = 0; k < whole; k += kLanes) store_bf16(to + k, load(from + k));
      uint16_t last[kLanes];
      store_bf16(last, load_n(from + whole, static_cast<int>(args.w->k() - whole)));
      std::memcpy(to + whole, last, static_cast<size_t>(2 * pairs - whole) * sizeof(uint16_t));
    }
  });
  const Operand<WeightBf16Dot> operand = {reinterpret_cast<const uint32_t*>(rounded), pairs, pairs, 0, 0};
  if (args.m <= kDirectRows) return run_direct<WeightBf16Dot>(args, operand, pool);
  run_blocked<WeightBf16Dot, WeightBf16Dot>(args, operand, pool, workspace);
}

// Register-only chains, to compare the two instructions.
inline float time_fma_chains(int64_t rounds) {
  Vec sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = set1(static_cast<float>(i));
  Vec factor = set1(0.5f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sums[i] = fma(sums[i], factor, factor);
    __asm__ volatile("" : "+v"(factor.v));
  }
  float total = 0;
  for (const Vec& sum : sums) total += reduce_add(sum);
  return total;
}
inline float time_dot_chains(int64_t rounds) {
  Vec sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = set1(static_cast<float>(i));
  VecPairs pair = set1_bf16_pair(0x3f003f00);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sums[i] = dot_bf16(sums[i], pair, pair);
    __asm__ volatile("" : "+v"(pair.v));
  }
  float total = 0;
  for (const Vec& sum : sums) total += reduce_add(sum);
  return total;
}
