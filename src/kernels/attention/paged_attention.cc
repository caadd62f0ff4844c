// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/paged_attention.h"

#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/attention/attention_tiles.h"
#include "kernels/attention/store_kv.h"
#include "kernels/op_registry.h"

#define COLUBER_SIMD_SOURCE "kernels/attention/paged_attention_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

// Query vectors of a step up to which contexts are split, and partial results that are then held at once: 4 MB at a
// head dim of 128.
constexpr int64_t kSplitVectors = 2048;
constexpr int64_t kWaveVectors = 8192;
constexpr int64_t kWaveSegments = 64;  // of one tile

struct Plan {
  AttentionTile* tiles = nullptr;
  int64_t num_tiles = 0;
  int64_t vectors = 0;        // most of one tile
  int64_t max_segments = 0;   // end of the last one of any tile
  int64_t first_segment = 0;  // the first one of any tile
};

int64_t segments_of(const AttentionTile& tile) {
  return (tile.first_position + tile.num_tokens + kSegment - 1) / kSegment;
}

int64_t first_segment_of(const PagedAttentionArgs& args, const AttentionTile& tile) {
  return first_visible(args, tile) / kSegment;
}

bool chooses(const PagedAttentionArgs& args, int64_t token) {
  return args.selection.block_size > 0 && args.selection.lengths[token] > 0;
}

// Tokens of one tile. Queries that choose their keys share none of them.
int64_t tile_tokens(const PagedAttentionArgs& args, int64_t row) {
  for (int64_t t = args.query_start_loc[row]; t < args.query_start_loc[row + 1]; ++t) {
    if (chooses(args, t)) return 1;
  }
  return std::max<int64_t>(1, kTileVectors / (args.num_heads / args.kv.num_kv_heads));
}

Plan plan_tiles(const PagedAttentionArgs& args, Workspace& workspace) {
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  int64_t count = 0;
  for (int64_t r = 0; r < args.num_reqs; ++r) {
    const int64_t step = tile_tokens(args, r);
    count += (args.query_start_loc[r + 1] - args.query_start_loc[r] + step - 1) / step * args.kv.num_kv_heads;
  }
  Plan plan;
  plan.tiles = workspace.take<AttentionTile>(count);
  for (int64_t r = 0; r < args.num_reqs; ++r) {
    const int64_t begin = args.query_start_loc[r], end = args.query_start_loc[r + 1];
    const int64_t computed = args.seq_lens[r] - (end - begin), step = tile_tokens(args, r);
    for (int64_t t = begin; t < end; t += step) {
      for (int64_t g = 0; g < args.kv.num_kv_heads; ++g) {
        AttentionTile tile{r, g, t, computed + t - begin, std::min(step, end - t)};
        if (chooses(args, t)) {
          tile.first_position = args.selection.lengths[t] - 1;
          tile.blocks = args.selection.blocks + t * args.selection.stride;
        }
        plan.vectors = std::max(plan.vectors, tile.num_tokens * group);
        plan.max_segments = std::max(plan.max_segments, segments_of(tile));
        const int64_t first = first_segment_of(args, tile);
        plan.first_segment = plan.num_tiles == 0 ? first : std::min(plan.first_segment, first);
        plan.tiles[plan.num_tiles++] = tile;
      }
    }
  }
  return plan;
}

AttentionPartial take_partials(int64_t count, int64_t vectors, int64_t head_dim, Workspace& workspace) {
  return {workspace.take<float>(count * vectors), workspace.take<float>(count * vectors),
          workspace.take<float>(count * vectors * head_dim)};
}

AttentionPartial partial_at(const AttentionPartial& all, int64_t i, int64_t vectors, int64_t head_dim) {
  return {all.maximum + i * vectors, all.sum + i * vectors, all.values + i * vectors * head_dim};
}

class ThreadScratch {
 public:
  ThreadScratch(const PagedAttentionArgs& args, int64_t vectors, int threads, Workspace& workspace)
      : vectors_(vectors),
        head_dim_(args.kv.head_dim),
        widened_stride_(args.kv.dtype == DType::kFloat32 ? 0 : kKeyBlock * args.kv.head_dim),
        rows_(workspace.take<const float*>(threads * kKeyBlock)),
        widened_(workspace.take<float>(threads * widened_stride_)),
        keys_(workspace.take<float>(threads * kKeyBlock * head_dim_)),
        scores_(workspace.take<float>(threads * vectors * kKeyBlock)),
        queries_(workspace.take<const float*>(threads * vectors)),
        positions_(workspace.take<int64_t>(threads * vectors)) {}

  AttentionScratch of(int thread) const {
    return {rows_ + thread * kKeyBlock,
            widened_ + thread * widened_stride_,
            keys_ + thread * kKeyBlock * head_dim_,
            scores_ + thread * vectors_ * kKeyBlock,
            queries_ + thread * vectors_,
            positions_ + thread * vectors_};
  }

 private:
  int64_t vectors_, head_dim_, widened_stride_;
  const float** rows_;
  float* widened_;
  float* keys_;
  float* scores_;
  const float** queries_;
  int64_t* positions_;
};

void clear_tokens(const PagedAttentionArgs& args, int64_t begin, int64_t end) {
  const int64_t width = args.num_heads * args.kv.head_dim;
  for (int64_t t = begin; t < end; ++t) std::fill_n(args.out + t * args.out_stride, width, 0.0f);
}

// Every tile by one thread, its segments one after another.
template <AttendSegmentFunction attend, FoldPartialFunction fold, FinishTileFunction finish>
void run_whole_tiles(const PagedAttentionArgs& args, const Plan& plan, ThreadPool& pool, Workspace& workspace) {
  const int64_t vectors = plan.vectors, head_dim = args.kv.head_dim;
  const AttentionPartial sums = take_partials(pool.size(), vectors, head_dim, workspace);
  const AttentionPartial nexts = take_partials(pool.size(), vectors, head_dim, workspace);
  const ThreadScratch scratch(args, vectors, pool.size(), workspace);
  pool.parallel_for(plan.num_tiles, 1, [&](int64_t begin, int64_t end, int thread) {
    const AttentionPartial sum = partial_at(sums, thread, vectors, head_dim);
    const AttentionPartial next = partial_at(nexts, thread, vectors, head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const AttentionTile& tile = plan.tiles[i];
      const int64_t tile_vectors = tile.num_tokens * (args.num_heads / args.kv.num_kv_heads);
      const int64_t first = first_segment_of(args, tile);
      attend(args, tile, first, sum, scratch.of(thread));
      for (int64_t s = first + 1; s < segments_of(tile); ++s) {
        attend(args, tile, s, next, scratch.of(thread));
        fold(tile_vectors, head_dim, next, sum);
      }
      finish(args, tile, sum);
    }
  });
}

// Few query vectors over a long context: the unit is one segment of one tile, and tiles of a segment follow each other,
// so that the heads of a page are read together. (Head after head over the whole context, a page of memory held two
// rows of one head: 5 GB/s on one core of a 2.6 GHz Xeon.) Partial results are folded in the order that run_whole_tiles
// has.
template <AttendSegmentFunction attend, FoldPartialFunction fold, FinishTileFunction finish>
void run_split_tiles(const PagedAttentionArgs& args, const Plan& plan, ThreadPool& pool, Workspace& workspace) {
  const int64_t vectors = plan.vectors, head_dim = args.kv.head_dim, tiles = plan.num_tiles;
  // Not bounded by this step's context: a growing one must not ask for more scratch step by step.
  const int64_t wave = std::clamp<int64_t>(kWaveVectors / (tiles * vectors), 1, kWaveSegments);
  const AttentionPartial sums = take_partials(tiles, vectors, head_dim, workspace);
  const AttentionPartial nexts = take_partials(tiles * wave, vectors, head_dim, workspace);
  const ThreadScratch scratch(args, vectors, pool.size(), workspace);
  for (int64_t first = plan.first_segment; first < plan.max_segments; first += wave) {
    const int64_t width = std::min(wave, plan.max_segments - first);
    pool.parallel_for(tiles * width, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t segment = first + i / tiles;
        const AttentionTile& tile = plan.tiles[i % tiles];
        const int64_t begins = first_segment_of(args, tile);
        if (segment < begins || segment >= segments_of(tile)) continue;
        const AttentionPartial out = segment == begins ? partial_at(sums, i % tiles, vectors, head_dim)
                                                       : partial_at(nexts, i, vectors, head_dim);
        attend(args, tile, segment, out, scratch.of(thread));
      }
    });
    pool.parallel_for(tiles, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const AttentionTile& tile = plan.tiles[i];
        const int64_t last = std::min(segments_of(tile), first + width);
        for (int64_t s = std::max(first, first_segment_of(args, tile) + 1); s < last; ++s) {
          fold(tile.num_tokens * (args.num_heads / args.kv.num_kv_heads), head_dim,
               partial_at(nexts, (s - first) * tiles + i, vectors, head_dim), partial_at(sums, i, vectors, head_dim));
        }
        if (last == segments_of(tile) && last > first) finish(args, tile, partial_at(sums, i, vectors, head_dim));
      }
    });
  }
}

template <AttendSegmentFunction attend, FoldPartialFunction fold, FinishTileFunction finish>
void paged_attention_tiled(const PagedAttentionArgs& args, ThreadPool& pool, Workspace& workspace) {
  WorkspaceScope scope(workspace);
  clear_tokens(args, args.num_reqs > 0 ? args.query_start_loc[args.num_reqs] : 0, args.num_tokens);
  const Plan plan = plan_tiles(args, workspace);
  if (plan.num_tiles == 0) return;
  if (plan.max_segments - plan.first_segment > 1 && plan.num_tiles * plan.vectors <= kSplitVectors) {
    run_split_tiles<attend, fold, finish>(args, plan, pool, workspace);
  } else {
    run_whole_tiles<attend, fold, finish>(args, plan, pool, workspace);
  }
}

// A row of at most some hundred bytes is not worth a thread.
template <void (*store_rows)(const StoreKvArgs&, int64_t, int64_t)>
void store_kv_parallel(const StoreKvArgs& args, ThreadPool& pool) {
  constexpr int64_t kGrain = 16;
  if (args.num_tokens <= kGrain) return store_rows(args, 0, args.num_tokens);
  pool.parallel_for(args.num_tokens, kGrain, [&](int64_t begin, int64_t end, int) { store_rows(args, begin, end); });
}

}  // namespace

namespace {

void check_selection(const PagedAttentionArgs& args, int64_t row) {
  const KeySelection& chosen = args.selection;
  const int64_t end = args.query_start_loc[row + 1];
  for (int64_t t = args.query_start_loc[row]; t < end; ++t) {
    if (!chooses(args, t)) continue;
    const int64_t last = chosen.lengths[t] - 1, position = args.seq_lens[row] - end + t;
    COLUBER_CHECK(last / chosen.block_size < chosen.stride, "token {} chooses {} keys, its list has {} blocks of {}", t,
                  last + 1, chosen.stride, chosen.block_size);
    const int32_t* blocks = chosen.blocks + t * chosen.stride;
    for (int64_t i = 0; i <= last / chosen.block_size; ++i) {
      COLUBER_CHECK(blocks[i] >= 0 && (i == 0 || blocks[i] > blocks[i - 1]), "token {}: block {} of {}", t, i,
                    blocks[i]);
    }
    COLUBER_CHECK(blocks[last / chosen.block_size] * chosen.block_size + last % chosen.block_size <= position,
                  "token {} at position {} chooses a key behind it", t, position);
  }
}

}  // namespace

void check_paged_attention(const PagedAttentionArgs& args) {
  const KvPages& kv = args.kv;
  COLUBER_CHECK(kv.num_kv_heads > 0 && kv.head_dim > 0 && kv.block_size > 0, "kv heads {}, head dim {}, block size {}",
                kv.num_kv_heads, kv.head_dim, kv.block_size);
  COLUBER_CHECK(args.num_heads > 0 && args.num_heads % kv.num_kv_heads == 0,
                "{} query heads must be a multiple of {} kv heads", args.num_heads, kv.num_kv_heads);
  COLUBER_CHECK(kv.dtype == DType::kFloat32 || kv.dtype == DType::kBFloat16 || kv.dtype == DType::kFloat16 ||
                    kv.dtype == DType::kInt8 || kv.dtype == DType::kFloat8E4M3,
                "pages are float32, bfloat16, float16, int8 or float8_e4m3fn, not {}", dtype_name(kv.dtype));
  COLUBER_CHECK(args.window >= 0 && (args.bias == nullptr || args.bias_extent > 0), "window {}, bias over {} positions",
                args.window, args.bias_extent);
  COLUBER_CHECK(args.selection.block_size == 0 || (args.window == 0 && args.bias == nullptr),
                "chosen keys go with no window and no bias");
  for (int64_t r = 0; r < args.num_reqs; ++r) {
    const int64_t query = args.query_start_loc[r + 1] - args.query_start_loc[r];
    COLUBER_CHECK(query >= 0 && args.seq_lens[r] >= 0, "row {}: {} query tokens, length {}", r, query,
                  args.seq_lens[r]);
    if (query == 0) continue;
    COLUBER_CHECK((args.seq_lens[r] + kv.block_size - 1) / kv.block_size <= args.block_table.cols,
                  "row {}: length {} needs more pages of {} tokens than the table's {} columns", r, args.seq_lens[r],
                  kv.block_size, args.block_table.cols);
    check_selection(args, r);
  }
  COLUBER_CHECK(args.num_reqs == 0 || args.query_start_loc[args.num_reqs] <= args.num_tokens,
                "rows end at token {}, the step has {}", args.query_start_loc[args.num_reqs], args.num_tokens);
}

const Operation<PagedAttentionFunction>& paged_attention() {
  static const Operation<PagedAttentionFunction> operation(
      "paged_attention",
      {{"avx512", Isa::kAvx512,
        &paged_attention_tiled<avx512::attention_segment, avx512::attention_fold, avx512::attention_finish>},
       {"avx2", Isa::kAvx2,
        &paged_attention_tiled<avx2::attention_segment, avx2::attention_fold, avx2::attention_finish>},
       {"ref", Isa::kRef, &paged_attention_ref}});
  return operation;
}

const Operation<StoreKvFunction>& store_kv() {
  static const Operation<StoreKvFunction> operation(
      "store_kv", {{"avx512", Isa::kAvx512, &store_kv_parallel<avx512::store_kv_rows>},
                   {"avx2", Isa::kAvx2, &store_kv_parallel<avx2::store_kv_rows>},
                   {"ref", Isa::kRef, &store_kv_ref}});
  return operation;
}

namespace {
const RegisterOperations kEntered(paged_attention, store_kv);
}

}  // namespace coluber
