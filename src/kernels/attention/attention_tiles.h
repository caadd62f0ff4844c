// SPDX-License-Identifier: Apache-2.0
//
// How the SIMD tiers of paged_attention cut their work: tiles of query vectors that share one kv head, and segments of
// the context on an absolute grid. The drivers in paged_attention.cc walk these; a tier supplies the arithmetic of one
// segment.
#pragma once

#include <cstdint>

#include "kernels/attention/paged_attention.h"

namespace coluber {

// Keys of one online-softmax step: 64 keys of 128 float32 still leave room in a second-level cache for the queries.
inline constexpr int64_t kKeyBlock = 64;
// Positions that one partial result sums up; a multiple of kKeyBlock. Long contexts are split over threads by segments.
inline constexpr int64_t kSegment = 512;
// Query vectors (tokens times heads of the group) that share a pass over the keys.
inline constexpr int64_t kTileVectors = 32;

// Vector v of a tile is token v / group, head kv_head * group + v % group.
struct AttentionTile {
  int64_t row = 0;
  int64_t kv_head = 0;
  int64_t first_token = 0;     // in the packed batch
  int64_t first_position = 0;  // of first_token in its sequence
  int64_t num_tokens = 0;
  const int32_t* blocks = nullptr;  // of a query that chooses its keys; positions above are then numbers of keys
};

// First position that the first query of a tile sees; the others see none before it.
inline int64_t first_visible(const PagedAttentionArgs& args, const AttentionTile& tile) {
  return args.window > 0 && tile.first_position >= args.window ? tile.first_position - args.window + 1 : 0;
}

// Running maximum, sum and unnormalised output of each vector of a tile.
struct AttentionPartial {
  float* maximum = nullptr;  // [vectors]
  float* sum = nullptr;      // [vectors]
  float* values = nullptr;   // [vectors, D]
};

// Scratch of one thread.
struct AttentionScratch {
  const float** rows = nullptr;     // [kKeyBlock] values of the block
  float* widened = nullptr;         // [kKeyBlock, D], 16-bit pages only
  float* keys = nullptr;            // [D, kKeyBlock] keys of the block, transposed
  float* scores = nullptr;          // [vectors, kKeyBlock]
  const float** queries = nullptr;  // [vectors]
  int64_t* positions = nullptr;     // [vectors]
};

// Overwrites `out` with the sums over the keys of one segment.
using AttendSegmentFunction = void (*)(const PagedAttentionArgs& args, const AttentionTile& tile, int64_t segment,
                                       const AttentionPartial& out, const AttentionScratch& scratch);
// into (+)= next, the later segment.
using FoldPartialFunction = void (*)(int64_t vectors, int64_t head_dim, const AttentionPartial& next,
                                     const AttentionPartial& into);
// Normalises and writes the tile's rows of args.out.
using FinishTileFunction = void (*)(const PagedAttentionArgs& args, const AttentionTile& tile,
                                    const AttentionPartial& sums);

}  // namespace coluber
