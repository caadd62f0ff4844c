// SPDX-License-Identifier: Apache-2.0
//
// The backend of Mamba-2 layers: the shared metadata of recurrent layers, the chunks of the chunked scan (on the
// absolute grid of each sequence, so that a state exists at every multiple of the chunk and at a checkpoint) and the
// checkpoints inside prefills. One builder a step loop.
#pragma once

#include "attention/mamba_attention.h"

namespace coluber {

struct ChunkMetadata {
  std::vector<int32_t> cu_chunk_seqlen;           // [chunks+1] tokens before each chunk
  std::vector<int32_t> seq_idx;                   // [chunks] row of each chunk
  std::vector<int32_t> last_chunk_indices;        // [rows] -1 for a row of no tokens
  std::vector<int32_t> checkpoint_chunk_indices;  // [rows] chunk that ends at the checkpoint, -1 none
};

// Pieces of at most `chunk_size` tokens that never cross a multiple of it, counted from each sequence's first token.
// `checkpoint_offsets` may be empty; an offset above 0 ends a piece after that many new tokens of its row.
void compute_chunk_metadata(int64_t chunk_size, std::span<const int32_t> num_computed, std::span<const int32_t> num_new,
                            std::span<const int32_t> checkpoint_offsets, ChunkMetadata& out);

class Mamba2AttentionMetadataBuilder : public AttentionMetadataBuilder {
 public:
  Mamba2AttentionMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names,
                                 const EngineConfig& config, Device& device);
  const Mamba2AttentionMetadata& build(int64_t common_prefix_len, const CommonAttentionMetadata& common,
                                       bool fast_build = false) override;
  const Mamba2AttentionMetadata& update_block_table(const Mamba2AttentionMetadata& metadata,
                                                    const BlockTableView& table);
  int64_t reorder_batch_threshold() const noexcept { return base_.reorder_batch_threshold(); }

 private:
  BaseMambaMetadataBuilder base_;
  PrefillCheckpointBuilder checkpoints_;
  int64_t chunk_size_;
  Mamba2AttentionMetadata metadata_;
  ChunkMetadata chunks_;
  std::vector<int64_t> prefill_rows_;
  std::vector<int32_t> num_computed_;
  std::vector<int32_t> num_new_;
};

class Mamba2AttentionBackend : public AttentionBackend {
 public:
  std::string_view name() const noexcept override { return "Mamba2AttentionBackend"; }
  BuilderFactory get_builder_cls() const override;
};

}  // namespace coluber
