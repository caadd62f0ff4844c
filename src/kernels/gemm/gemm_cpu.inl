// SPDX-License-Identifier: Apache-2.0
// Matrix products on packed panels. Very few rows (kDirectRows) run one register tile over all of K straight from the
// packed weight. More rows are packed into the order in which tiles read them and K is cut into blocks, with the sums
// between blocks in scratch (exact, so the chain over k is the same). Rows that make one tile read the panel in place,
// widening in registers, in blocks so short that the tile beside it finds them in the first-level cache. For more rows
// each tile column of a block is first widened to float32; it stays in the first-level cache while the tiles below it
// run, and the next one takes its place there.
#include "kernels/gemm/gemm_tile.inl"
#include "kernels/simd/transpose.inl"

inline constexpr bool kWide = kLanes == 16;
inline constexpr int kPanelVectors = PackedMatrix::kPanel / kLanes;
inline constexpr int kStepVectors = PackedMatrix::kPanelStep / kLanes;  // the tile of the last, narrower panel
inline constexpr int kDirectRows = kWide ? 6 : 1;                       // that fit beside kPanelVectors in registers
inline constexpr int64_t kShortBlockBytes = 12 << 10;                   // of a panel that is read in place
inline constexpr int64_t kPrefetchBytes = 2048;

// The tile of many rows: 6 x 64 or 6 x 16, 24 or 12 accumulators. A tile column of kBlockK fits the first-level cache
// (32 or 16 KiB) beside the rows that stream past it from the second. Wide where there are registers for four vectors
// of weights: half the bytes of A a multiply-add (measured against 12 x 32: 5 to 10 % faster products).
struct ManyRows {
  static constexpr int kRows = 6;
  static constexpr int kVectors = kWide ? 4 : 2;
  static constexpr int64_t kBlockK = kWide ? 128 : 256;
  static constexpr int64_t kMostTiles = kWide ? 44 : 32;  // of a chunk: their rows stay in the second-level cache
  static constexpr int64_t kFewestTiles = 16;             // so that widening does not show
};
// The tile of few rows, which read the panel in place: high, so that what is widened in registers serves many rows.
struct FewRows {
  static constexpr int kRows = kWide ? 12 : 6;
  static constexpr int kVectors = 2;
  static constexpr int64_t kMostTiles = kWide ? 16 : 32;
  static constexpr int64_t kFewestTiles = kWide ? 8 : 16;
};
inline constexpr int64_t kInPlaceRows = kWide ? 2 * FewRows::kRows : FewRows::kRows;

// Tiles come in three heights; the rows that one has too many are zeros and are not written.
template <typename TileShape>
inline constexpr int kHeights[] = {TileShape::kRows - 4, TileShape::kRows - 2, TileShape::kRows};
template <typename TileShape>
inline int tile_height(int64_t rows) {
  for (int height : kHeights<TileShape>) {
    if (rows <= height) return height;
  }
  return TileShape::kRows;
}

template <typename W, typename TileShape, int kVectors, bool kStream>
void run_packed(const Slice<W>& slice, int height) {
  using A = typename W::A;
  constexpr int kLow = kHeights<TileShape>[0], kMiddle = kHeights<TileShape>[1], kFull = kHeights<TileShape>[2];
  switch (height) {
    case kLow:
      return run_tile<W, kLow, kVectors, kStream>(slice, PackedRows<A, kLow>{slice.a});
    case kMiddle:
      return run_tile<W, kMiddle, kVectors, kStream>(slice, PackedRows<A, kMiddle>{slice.a});
    default:
      return run_tile<W, kFull, kVectors, kStream>(slice, PackedRows<A, kFull>{slice.a});
  }
}

// Very few rows, as they lie.
template <typename W, int kVectors, bool kStream>
void run_strided(const Slice<W>& slice) {
  const StridedRows<typename W::A> rows{slice.a, slice.lda};
  if constexpr (kDirectRows > 1) {
    switch (slice.rows) {
      case 2:
        return run_tile<W, 2, kVectors, kStream>(slice, rows);
      case 3:
        return run_tile<W, 3, kVectors, kStream>(slice, rows);
      case 4:
        return run_tile<W, 4, kVectors, kStream>(slice, rows);
      case 5:
        return run_tile<W, 5, kVectors, kStream>(slice, rows);
      case 6:
        return run_tile<W, 6, kVectors, kStream>(slice, rows);
      default:
        break;
    }
  }
  run_tile<W, 1, kVectors, kStream>(slice, rows);
}

// A as the caller has it, or its pairs.
template <typename W>
struct Operand {
  const typename W::A* a;
  int64_t lda;
  int64_t k;  // K, or the number of pairs
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
      Slice<W> slice;
      slice.args = &args;
      slice.a = operand.a;
      slice.lda = operand.lda;
      slice.count = operand.k;
      if constexpr (std::is_same_v<W, WeightBlocks>) {
        slice.blocks = w.panel_blocks(p);
        slice.panel.width = w.panel_width(p);
      } else {
        slice.panel = panel_of<W>(w, p);
      }
      slice.ahead = kPrefetchBytes;
      slice.column = p * PackedMatrix::kPanel;
      slice.rows = static_cast<int>(args.m);
      if (slice.panel.width == PackedMatrix::kPanel) {
        run_strided<W, kPanelVectors, true>(slice);
        continue;
      }
      const int64_t width = slice.panel.width;
      for (int64_t j = 0; j < width; j += PackedMatrix::kPanelStep) {
        run_strided<W, kStepVectors, false>(slice);
        slice.panel.data += PackedMatrix::kPanelStep * W::kElements;
        slice.strip += 1;
        slice.column += PackedMatrix::kPanelStep;
      }
    }
  });
}

// `count` of k of a tile column, [count][columns], as float32 or, for bf16 dots, the pairs as they are.
template <typename Stored>
void widen_column(Panel<Stored> column, int64_t count, int64_t columns, float* out) {
  constexpr int64_t kDepth = std::is_same_v<Stored, WeightBf16> ? 2 : 1;
  const typename Stored::Element* from = column.data;
  for (int64_t i = 0; i < count; i += kDepth, from += column.width * Stored::kElements, out += kDepth * columns) {
    for (int64_t x = 0; x < columns; x += kLanes) {
      const typename Stored::Element* at = from + x * Stored::kElements;
      prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes);
      if constexpr (std::is_same_v<Stored, WeightF32>) {
        store(out + x, load(at));
      } else if constexpr (std::is_same_v<Stored, WeightF16>) {
        store(out + x, load_f16(at));
      } else if constexpr (std::is_same_v<Stored, WeightBf16Dot>) {
        store(out + x, load(reinterpret_cast<const float*>(at)));
      } else {
        const VecPairs pairs = load_bf16_pairs(at);
        store(out + x, first_of_pairs(pairs));
        if (i + 1 < count) store(out + columns + x, second_of_pairs(pairs));
      }
    }
  }
}

// A panel as the blocked product reads it.
template <typename Stored>
struct StoredPanel {
  static constexpr int64_t kDepth = std::is_same_v<Stored, WeightBf16> ? 2 : 1;  // of k in a stored row
  static constexpr int64_t kStep = 2;
  Panel<Stored> panel;
  int64_t width;

  StoredPanel(const PackedMatrix& w, int64_t p) : panel(panel_of<Stored>(w, p)), width(panel.width) {}
  const std::byte* at(int64_t k, int64_t column) const {
    return reinterpret_cast<const std::byte*>(panel.data + (k / kDepth * width + column) * Stored::kElements);
  }
  int64_t bytes(int64_t count) const {
    return (count + kDepth - 1) / kDepth * width * Stored::kElements *
           static_cast<int64_t>(sizeof(typename Stored::Element));
  }
  void widen(int64_t k, int64_t count, int64_t column, int64_t columns, float* out) const {
    widen_column<Stored>({reinterpret_cast<const typename Stored::Element*>(at(k, column)), width}, count, columns,
                         out);
  }
};
template <>
struct StoredPanel<WeightBlocks> {
  static constexpr int64_t kStep = PanelForm::kStep;
  PanelBlocks blocks;
  int64_t width;
  ExpandPanel* expand;

  StoredPanel(const PackedMatrix& w, int64_t p)
      : blocks(w.panel_blocks(p)), width(w.panel_width(p)), expand(panel_functions(w).expand) {}
  const std::byte* at(int64_t k, int64_t) const { return blocks.data + bytes(k); }
  int64_t bytes(int64_t count) const { return count * width * blocks.bytes / blocks.elements; }
  void widen(int64_t k, int64_t count, int64_t column, int64_t columns, float* out) const {
    expand(blocks, column / PanelForm::kRows, columns / PanelForm::kRows, k, count, out);
  }
};

// How the rows and K of a product are cut, and A packed accordingly: [block of k][tile][k][height].
template <typename W, typename TileShape>
struct Blocking {
  int64_t m, k;
  int64_t block_k;
  int64_t tiles;
  int height, last_height;
  const typename W::A* a = nullptr;

  // `step` divides `longest` and the lengths of all blocks but the last.
  Blocking(int64_t rows, int64_t depth, int64_t longest, int64_t step) : m(rows), k(depth) {
    const int64_t blocks = (k + longest - 1) / longest;
    block_k = ((k + blocks - 1) / blocks + step - 1) / step * step;
    tiles = (m + TileShape::kRows - 1) / TileShape::kRows;
    // A few rows make tiles of equal height: 14 are 8 and 8, not 12 and 8.
    height = tiles <= 2 ? tile_height<TileShape>((m + tiles - 1) / tiles) : TileShape::kRows;
    last_height = tile_height<TileShape>(m - (tiles - 1) * height);
  }
  int64_t blocks() const { return (k + block_k - 1) / block_k; }
  int64_t padded_rows() const { return (tiles - 1) * height + last_height; }
  int height_of(int64_t tile) const { return tile + 1 == tiles ? last_height : height; }
  int64_t place(int64_t block, int64_t tile) const { return (block * padded_rows() + tile * height) * block_k; }

  void pack_tile(const Operand<W>& from, int64_t block, int64_t tile, typename W::A* to) const {
    const int64_t first = tile * height, k0 = block * block_k, count = std::min(block_k, k - k0);
    const int64_t rows = std::min<int64_t>(height_of(tile), m - first);
    auto* out = reinterpret_cast<float*>(to + place(block, tile));
    if (rows < height_of(tile)) std::memset(out, 0, static_cast<size_t>(count * height_of(tile)) * sizeof(float));
    transpose_into(reinterpret_cast<const float*>(from.a + first * from.lda + k0), from.lda, rows, count, out,
                   height_of(tile));
  }
  void pack(const Operand<W>& from, ThreadPool& pool, Workspace& workspace) {
    constexpr int64_t kElements = 16 << 10;  // a few microseconds
    auto* to = workspace.take<typename W::A>(blocks() * block_k * padded_rows());
    const int64_t grain = std::max<int64_t>(1, kElements / (height * k));
    pool.parallel_for(tiles, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t tile = begin; tile < end; ++tile) {
        for (int64_t block = 0; block < blocks(); ++block) pack_tile(from, block, tile, to);
      }
    });
    a = to;
  }
};

// Asks for the memory of the block after this one, a little with each tile: it arrives while the tiles multiply.
class Fetcher {
 public:
  Fetcher(const std::byte* from, int64_t bytes, int64_t tiles) : at_(from), lines_((bytes / 64 + tiles - 1) / tiles) {}
  COLUBER_INLINE void fetch() {
    for (int64_t i = 0; i < lines_; ++i, at_ += 64) prefetch_l2(at_);
  }

 private:
  const std::byte* at_;
  int64_t lines_;
};

struct BlockScratch {
  float* widened;  // [ManyRows::kBlockK, a tile's columns]
  float* partial;  // [tile column][tile][TileShape::kRows, a tile's columns]
};

// The tiles of one tile column in a block of k. `kStream`: the first of them asks for the same column of the next
// block.
template <typename W, typename TileShape, int kVectors, bool kStream>
void run_column(Slice<W> slice, const Blocking<W, TileShape>& blocking, int64_t block, int64_t tile_begin,
                int64_t tile_end, Fetcher& fetcher) {
  const int64_t tile_sums = TileShape::kRows * kVectors * kLanes;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile, slice.partial += tile_sums) {
    slice.a = blocking.a + blocking.place(block, tile);
    slice.row = tile * blocking.height;
    const int height = blocking.height_of(tile);
    fetcher.fetch();
    slice.rows = static_cast<int>(std::min<int64_t>(height, blocking.m - slice.row));
    if (kStream && tile == tile_begin) {
      run_packed<W, TileShape, kVectors, kStream>(slice, height);
    } else {
      run_packed<W, TileShape, kVectors, false>(slice, height);
    }
  }
}

// Tiles tile_begin..tile_end of one panel. `W` is what the tile multiplies, `Stored` what the panel holds; where they
// are the same and the rows few, the panel is read in place.
template <typename Stored, typename W, typename TileShape, bool kInPlace>
void run_block(const GemmArgs& args, const Blocking<W, TileShape>& blocking, int64_t p, int64_t tile_begin,
               int64_t tile_end, BlockScratch scratch) {
  const StoredPanel<Stored> stored(*args.w, p);
  const bool whole = stored.width == PackedMatrix::kPanel;
  const int64_t columns = whole ? TileShape::kVectors * kLanes : PackedMatrix::kPanelStep;
  const int64_t column_sums = (tile_end - tile_begin) * TileShape::kRows * columns;
  for (int64_t block = 0; block < blocking.blocks(); ++block) {
    const int64_t k = block * blocking.block_k, count = std::min(blocking.block_k, blocking.k - k);
    // The next block of k, or the next panel's first.
    const int64_t bytes = stored.bytes(count);
    Fetcher fetcher(stored.at(k, 0) + bytes, kInPlace && whole ? 0 : bytes,
                    (tile_end - tile_begin) * (stored.width / columns));
    for (int64_t j = 0; j < stored.width; j += columns) {
      Slice<W> slice;
      slice.args = &args;
      slice.count = count;
      slice.panel = {reinterpret_cast<const typename W::Element*>(stored.at(k, j)), stored.width};
      if constexpr (!kInPlace) {
        stored.widen(k, count, j, columns, scratch.widened);
        slice.panel = {reinterpret_cast<const typename W::Element*>(scratch.widened), columns};
      }
      slice.ahead = bytes;
      slice.column = p * PackedMatrix::kPanel + j;
      slice.partial = scratch.partial + j / columns * column_sums;
      slice.begins = block == 0;
      slice.ends = block + 1 == blocking.blocks();
      if (whole) {
        run_column<W, TileShape, TileShape::kVectors, kInPlace>(slice, blocking, block, tile_begin, tile_end, fetcher);
      } else {
        run_column<W, TileShape, kStepVectors, false>(slice, blocking, block, tile_begin, tile_end, fetcher);
      }
    }
  }
}

template <typename Stored, typename W, bool kInPlace>
void run_blocked(const GemmArgs& args, const Operand<W>& operand, ThreadPool& pool, Workspace& workspace) {
  using TileShape = std::conditional_t<kInPlace, FewRows, ManyRows>;
  // Enough chunks that a thread which loses its core for a while costs the others little and that all end together.
  constexpr int64_t kChunksPerThread = 16;
  constexpr int64_t kStepBytes = PackedMatrix::kPanel * static_cast<int64_t>(sizeof(typename Stored::Element)) *
                                 (std::is_same_v<Stored, WeightBf16Dot> ? 2 : 1);
  constexpr int64_t kShortBlockK = kShortBlockBytes / kStepBytes;
  WorkspaceScope scope(workspace);
  Blocking<W, TileShape> blocking(args.m, operand.k, kInPlace ? kShortBlockK : ManyRows::kBlockK,
                                  StoredPanel<Stored>::kStep);
  blocking.pack(operand, pool, workspace);
  const int64_t panels = args.w->num_panels();
  const int64_t wanted = (kChunksPerThread * pool.size() + panels - 1) / panels;
  const int64_t shortest =
      std::clamp((blocking.tiles + wanted - 1) / wanted, TileShape::kFewestTiles, TileShape::kMostTiles);
  const int64_t parts = (blocking.tiles + shortest - 1) / shortest;
  const int64_t part = (blocking.tiles + parts - 1) / parts;

  const int64_t widened = kInPlace ? 0 : ManyRows::kBlockK * TileShape::kVectors * kLanes;
  const int64_t each = widened + part * TileShape::kRows * PackedMatrix::kPanel;
  float* scratch = workspace.take<float>(each * pool.size());
  pool.parallel_for(panels * parts, 1, [&](int64_t begin, int64_t end, int thread) {
    float* own = scratch + each * thread;
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      // Panel after panel over the same rows: these stay in the second-level cache, the weights stream.
      const int64_t tile = chunk / panels * part;
      run_block<Stored, W, TileShape, kInPlace>(args, blocking, chunk % panels, tile,
                                                std::min(blocking.tiles, tile + part), {own, own + widened});
    }
  });
}

template <typename Stored>
void run(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  if (args.m <= kDirectRows) return run_direct<Stored>(args, {args.a, args.lda, args.w->k()}, pool);
  if (args.m <= kInPlaceRows)
    return run_blocked<Stored, Stored, true>(args, {args.a, args.lda, args.w->k()}, pool, workspace);
  run_blocked<Stored, WeightF32, false>(args, {args.a, args.lda, args.w->k()}, pool, workspace);
}

inline void run_blocks(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  const Operand<WeightF32> operand{args.a, args.lda, args.w->k()};
  if (args.m <= kDirectRows) return run_direct<WeightBlocks>(args, {operand.a, operand.lda, operand.k}, pool);
  run_blocked<WeightBlocks, WeightF32, false>(args, operand, pool, workspace);
}

inline void multiply_f32(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  if (args.w->panel_form() != nullptr) return run_blocks(args, pool, workspace);
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
  const Operand<WeightBf16Dot> operand = {reinterpret_cast<const uint32_t*>(rounded), pairs, pairs};
  if (args.m <= kDirectRows) return run_direct<WeightBf16Dot>(args, operand, pool);
  if (args.m <= kInPlaceRows) return run_blocked<WeightBf16Dot, WeightBf16Dot, true>(args, operand, pool, workspace);
  run_blocked<WeightBf16Dot, WeightBf16Dot, false>(args, operand, pool, workspace);
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
