// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/index_scores.h"

#include <vector>

#include "base/dtype.h"
#include "kernels/op_registry.h"

namespace coluber {
namespace {

// Keys that a pass over the queries shares: 64 of 128 elements lie in half of a first-level cache.
constexpr int64_t kIndexKeys = 64;

}  // namespace
}  // namespace coluber

#define COLUBER_SIMD_SOURCE "kernels/attention/index_scores_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

const std::byte* note_of_block(const IndexScoresArgs& args, int64_t row, int64_t block) {
  const int64_t position = block * args.block_size + args.block_size - 1;
  const std::byte* page = args.notes.page(args.block_table.at(row, position / args.notes.block_size));
  return page + position % args.notes.block_size * args.notes.token_bytes();
}

template <void (*score_keys)(const IndexScoresArgs&, int64_t, int64_t, int64_t, const float*)>
void index_scores_tiled(const IndexScoresArgs& args, ThreadPool& pool, Workspace& workspace) {
  WorkspaceScope scope(workspace);
  int64_t most = 0;
  for (int64_t r = 0; r < args.num_reqs; ++r) most = std::max<int64_t>(most, args.seq_lens[r] / args.block_size);
  const int64_t tiles = (most + kIndexKeys - 1) / kIndexKeys, keys_size = kIndexKeys * args.key_dim;
  float* scratch = workspace.take<float>(pool.size() * 2 * keys_size);
  pool.parallel_for(args.num_reqs * tiles, 1, [&](int64_t begin, int64_t end, int thread) {
    float* keys = scratch + thread * 2 * keys_size;
    float* turned = keys + keys_size;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / tiles, first = i % tiles * kIndexKeys;
      const int64_t count = std::min(kIndexKeys, args.seq_lens[row] / args.block_size - first);
      if (count <= 0 || args.query_start_loc[row] == args.query_start_loc[row + 1]) continue;
      for (int64_t b = 0; b < count; ++b) {
        read_kv_row(args.notes, note_of_block(args, row, first + b), args.key_dim, keys + b * args.key_dim);
      }
      for (int64_t d = 0; d < args.key_dim; ++d) {
        for (int64_t b = 0; b < kIndexKeys; ++b)
          turned[d * kIndexKeys + b] = b < count ? keys[b * args.key_dim + d] : 0.0f;
      }
      score_keys(args, row, first, count, turned);
    }
  });
}

}  // namespace

void index_scores_ref(const IndexScoresArgs& args, ThreadPool&, Workspace&) {
  std::vector<float> key(static_cast<size_t>(args.key_dim));
  for (int64_t r = 0; r < args.num_reqs; ++r) {
    const int64_t end = args.query_start_loc[r + 1];
    for (int64_t t = args.query_start_loc[r]; t < end; ++t) {
      const int64_t position = args.seq_lens[r] - end + t;
      for (int64_t b = 0; b < (position + 1) / args.block_size; ++b) {
        read_kv_row(args.notes, note_of_block(args, r, b), args.key_dim, key.data());
        double score = 0;
        for (int64_t h = 0; h < args.num_heads; ++h) {
          const float* q = args.q + (t * args.num_heads + h) * args.key_dim;
          double dot = 0;
          for (int64_t d = 0; d < args.key_dim; ++d) dot += static_cast<double>(q[d]) * key[static_cast<size_t>(d)];
          const double weight = args.weights == nullptr ? 1.0 : args.weights[t * args.num_heads + h];
          score += weight * std::max(0.0, args.scale * dot);
        }
        args.scores[t * args.scores_stride + b] = static_cast<float>(score);
      }
    }
  }
}

const Operation<IndexScoresFunction>& index_scores() {
  static const Operation<IndexScoresFunction> operation(
      "index_scores", {{"avx512", Isa::kAvx512, &index_scores_tiled<avx512::index_score_keys>},
                       {"avx2", Isa::kAvx2, &index_scores_tiled<avx2::index_score_keys>},
                       {"ref", Isa::kRef, &index_scores_ref}});
  return operation;
}

namespace {
const RegisterOperations kEntered(index_scores);
}

}  // namespace coluber
