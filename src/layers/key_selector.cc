// SPDX-License-Identifier: Apache-2.0
#include "layers/key_selector.h"

#include <algorithm>
#include <numeric>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/attention/index_scores.h"
#include "tensor/workspace.h"

namespace coluber {

KeySelection KeySelector::select(const AttentionLayerBase& layer, const PagedKvCache& cache, const ForwardBatch& batch,
                                 const float* x, const float* query_source, const PagedAttentionArgs& step) {
  Workspace& workspace = *batch.workspace;
  const int64_t tokens = batch.num_tokens();
  const KvPages notes = cache.extra_pages();
  COLUBER_CHECK(notes.head_dim == config_.note_dim, "layer '{}': notes of {} elements in a plane of {}",
                layer.layer_name(), config_.note_dim, notes.head_dim);
  int64_t most_blocks = 0;
  for (int64_t r = 0; r < step.num_reqs; ++r) {
    if (step.query_start_loc[r + 1] > step.query_start_loc[r])
      most_blocks = std::max(most_blocks, step.seq_lens[r] / config_.block_size);
  }
  const bool must_choose = most_blocks > config_.budget;
  const int64_t stride = config_.budget + 1;
  int32_t* blocks = workspace.take<int32_t>(must_choose ? tokens * stride : 0);
  int32_t* lengths = workspace.take<int32_t>(must_choose ? tokens : 0);

  WorkspaceScope scope(workspace);
  float* note = workspace.take<float>(tokens * config_.note_dim);
  make_notes(batch, x, note);
  cache.store_extra(layer, batch, note, config_.note_dim);
  finish_blocks(batch, step, notes);
  if (!must_choose) return {};
  float* q = workspace.take<float>(tokens * config_.num_heads * config_.key_dim);
  float* weights = workspace.take<float>(tokens * config_.num_heads);
  float* scores = workspace.take<float>(tokens * most_blocks);
  IndexScoresArgs args;
  args.weights = make_queries(batch, x, query_source, q, weights) ? weights : nullptr;
  args.q = q;
  args.num_heads = config_.num_heads;
  args.key_dim = config_.key_dim;
  args.scale = config_.scale;
  args.notes = notes;
  args.block_size = config_.block_size;
  args.block_table = step.block_table;
  args.query_start_loc = step.query_start_loc;
  args.seq_lens = step.seq_lens;
  args.num_reqs = step.num_reqs;
  args.scores = scores;
  args.scores_stride = most_blocks;
  index_scores()(args, *batch.thread_pool, workspace);
  choose(batch, step, scores, most_blocks, blocks, lengths);
  return {config_.block_size, blocks, stride, lengths};
}

// A block's key takes the place of its last token's note, which nothing else reads once the block is whole.
void KeySelector::finish_blocks(const ForwardBatch& batch, const PagedAttentionArgs& step, const KvPages& notes) const {
  Workspace& workspace = *batch.workspace;
  WorkspaceScope scope(workspace);
  const int64_t block_size = config_.block_size, note_dim = config_.note_dim;
  const int64_t scratch_size = block_size * note_dim + config_.key_dim;
  float* scratch = workspace.take<float>(batch.thread_pool->size() * scratch_size);
  auto note_at = [&](int64_t row, int64_t position) {
    const int32_t id = step.block_table.at(row, position / notes.block_size);
    return id <= kNullBlockId ? nullptr
                              : notes.page(id) + dtype_bytes(notes.dtype, position % notes.block_size * note_dim);
  };
  for (int64_t r = 0; r < step.num_reqs; ++r) {
    const int64_t length = step.query_start_loc[r + 1] - step.query_start_loc[r];
    const int64_t computed = step.seq_lens[r] - length, first = computed / block_size;
    const int64_t count = (computed + length) / block_size - first;
    if (length == 0) continue;
    batch.thread_pool->parallel_for(count, 8, [&](int64_t begin, int64_t end, int thread) {
      float* block_notes = scratch + thread * scratch_size;
      float* key = block_notes + block_size * note_dim;
      for (int64_t b = first + begin; b < first + end; ++b) {
        std::byte* last = note_at(r, (b + 1) * block_size - 1);
        if (last == nullptr) continue;
        for (int64_t j = 0; j < block_size; ++j) {
          const std::byte* note = note_at(r, b * block_size + j);
          if (note != nullptr) convert_to_float(note, notes.dtype, note_dim, block_notes + j * note_dim);
        }
        pool(block_notes, b * block_size, key);
        convert_from_float(key, config_.key_dim, notes.dtype, last);
      }
    });
  }
}

void KeySelector::choose(const ForwardBatch& batch, const PagedAttentionArgs& step, const float* scores,
                         int64_t scores_stride, int32_t* blocks, int32_t* lengths) const {
  Workspace& workspace = *batch.workspace;
  WorkspaceScope scope(workspace);
  const int64_t stride = config_.budget + 1, tokens = batch.num_tokens();
  int32_t* orders = workspace.take<int32_t>(batch.thread_pool->size() * scores_stride);
  std::fill_n(lengths, tokens, 0);
  for (int64_t r = 0; r < step.num_reqs; ++r) {
    const int64_t first = step.query_start_loc[r], length = step.query_start_loc[r + 1] - first;
    const int64_t computed = step.seq_lens[r] - length;
    batch.thread_pool->parallel_for(length, 4, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t seen = computed + i + 1, whole = seen / config_.block_size, rest = seen % config_.block_size;
        if (whole <= config_.budget) continue;
        const int64_t token = first + i;
        int32_t* list = blocks + token * stride;
        choose_best(scores + token * scores_stride, whole, orders + thread * scores_stride, list);
        list[config_.budget] = static_cast<int32_t>(whole);
        lengths[token] = static_cast<int32_t>(config_.budget * config_.block_size + rest);
      }
    });
  }
}

void KeySelector::choose_best(const float* scores, int64_t count, int32_t* order, int32_t* blocks) const {
  std::iota(order, order + count, 0);
  std::nth_element(order, order + config_.budget - 1, order + count, [&](int32_t a, int32_t b) {
    // A score that is no number comes last: the order stays one.
    const float x = scores[a] == scores[a] ? scores[a] : -__builtin_inff();
    const float y = scores[b] == scores[b] ? scores[b] : -__builtin_inff();
    return x != y ? x > y : a < b;
  });
  std::copy_n(order, config_.budget, blocks);
  std::sort(blocks, blocks + config_.budget);
}

}  // namespace coluber
