// SPDX-License-Identifier: Apache-2.0
//
// Sparse attention's choice of keys, in blocks of successive positions: every token leaves a note in a plane of its
// layer's pages; the notes of a block become one key when its last token comes, kept in that token's note; a query
// scores the keys of the blocks before it (kernels/attention/index_scores.h), and where these are more than its budget
// it sees the best of them and the unfinished block that it stands in. What a note is, how a block's notes become a key
// and where queries come from is a model's own. Owns weights, never pages. One call at a time.
#pragma once

#include <cstdint>

#include "coluber/model.h"
#include "kernels/attention/paged_attention.h"
#include "layers/paged_kv_cache.h"

namespace coluber {

struct KeySelectorConfig {
  int64_t num_heads = 0;   // of the queries that score
  int64_t key_dim = 0;     // of a block's key and those queries
  int64_t note_dim = 0;    // what a token leaves, at least key_dim
  int64_t block_size = 0;  // positions
  int64_t budget = 0;      // blocks that a query sees beside its own
  float scale = 1.0f;      // of a query times a key
};

class KeySelector {
 public:
  explicit KeySelector(const KeySelectorConfig& config) : config_(config) {}
  virtual ~KeySelector() = default;

  int64_t note_elements() const noexcept { return config_.note_dim; }

  // For a step of `layer` with its tokens already stored in `cache`, whose extra plane holds the notes: x [T,
  // hidden_size]; `query_source`: what the layer's own queries are made from, [T, its width], or null; `step`: the
  // layer's rows and pages. Notes the step's tokens, then chooses. The answer lies in the batch's workspace, until the
  // caller's scope ends.
  KeySelection select(const AttentionLayerBase& layer, const PagedKvCache& cache, const ForwardBatch& batch,
                      const float* x, const float* query_source, const PagedAttentionArgs& step);

 protected:
  // note [T, note_dim] of the step's tokens.
  virtual void make_notes(const ForwardBatch& batch, const float* x, float* note) = 0;
  // q [T, num_heads, key_dim], weights [T, num_heads]; false where every head counts 1 and `weights` was left alone.
  virtual bool make_queries(const ForwardBatch& batch, const float* x, const float* query_source, float* q,
                            float* weights) = 0;
  // The key [key_dim] of a block from its notes [block_size, note_dim]. Called by several threads.
  virtual void pool(const float* notes, int64_t first_position, float* key) const = 0;

  const KeySelectorConfig& config() const noexcept { return config_; }

 private:
  void finish_blocks(const ForwardBatch& batch, const PagedAttentionArgs& step, const KvPages& notes) const;
  void choose(const ForwardBatch& batch, const PagedAttentionArgs& step, const float* scores, int64_t scores_stride,
              int32_t* blocks, int32_t* lengths) const;
  // Writes the best blocks of `count`, ascending. Ties go to the earlier block.
  void choose_best(const float* scores, int64_t count, int32_t* order, int32_t* blocks) const;

  KeySelectorConfig config_;
};

}  // namespace coluber
