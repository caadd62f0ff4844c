// SPDX-License-Identifier: Apache-2.0
//
// How much each query of a step wants each block of earlier positions: what sparse attention chooses by (DeepSeek-AI,
// DeepSeek-V3.2's lightning indexer, 2025; over pooled blocks as GLM-5 and Qwen4 have it). For query t at position p
// and block b < (p + 1) / block_size:
//
//   score[t, b] = sum_h weight[t, h] * max(0, scale * q[t, h] . key[b])          weight 1 where there is none
//
// key[b] is the first D elements of the note of the block's last position (`notes`: one head, values are keys). Sums
// run over d and over h in ascending order in float32, fused: a score depends on its query and its block alone, bit for
// bit within a tier. Scores of blocks beyond a query's own are not written.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

inline constexpr Tolerance kIndexScoresTolerance{.relative = 1e-5, .of_rms = 1e-5};

struct IndexScoresArgs {
  const float* q = nullptr;        // [T, H, D], contiguous
  const float* weights = nullptr;  // [T, H], contiguous, or null
  int64_t num_heads = 0;           // H
  int64_t key_dim = 0;             // D, at most notes.head_dim
  float scale = 1.0f;
  KvPages notes;
  int64_t block_size = 0;
  BlockTableView block_table;                // [R, columns]
  const int32_t* query_start_loc = nullptr;  // [R+1]
  const int32_t* seq_lens = nullptr;         // [R] with the tokens of this step
  int64_t num_reqs = 0;                      // R
  float* scores = nullptr;                   // [T, scores_stride]
  int64_t scores_stride = 0;                 // at least the blocks of any row
};

using IndexScoresFunction = void (*)(const IndexScoresArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<IndexScoresFunction>& index_scores();

void index_scores_ref(const IndexScoresArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber
