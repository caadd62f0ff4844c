// SPDX-License-Identifier: Apache-2.0
#include "attention/mamba2_attention.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace coluber {
namespace {

// Appends the pieces of `num_new` tokens after `num_computed` and returns the token behind them.
int64_t append_pieces(int64_t chunk_size, int64_t num_computed, int64_t num_new, int64_t first_token, int32_t row,
                      ChunkMetadata& out) {
  int64_t done = 0;
  while (done < num_new) {
    const int64_t to_grid = chunk_size - (num_computed + done) % chunk_size;
    out.cu_chunk_seqlen.push_back(static_cast<int32_t>(first_token + done));
    out.seq_idx.push_back(row);
    done += std::min(to_grid, num_new - done);
  }
  return first_token + num_new;
}

}  // namespace

void compute_chunk_metadata(int64_t chunk_size, std::span<const int32_t> num_computed, std::span<const int32_t> num_new,
                            std::span<const int32_t> checkpoint_offsets, ChunkMetadata& out) {
  COLUBER_CHECK(chunk_size >= 1 && num_computed.size() == num_new.size() &&
                    (checkpoint_offsets.empty() || checkpoint_offsets.size() == num_new.size()),
                "chunks of {} over {} computed, {} new counts and {} checkpoints", chunk_size, num_computed.size(),
                num_new.size(), checkpoint_offsets.size());
  out.cu_chunk_seqlen.clear();
  out.seq_idx.clear();
  out.last_chunk_indices.clear();
  out.checkpoint_chunk_indices.clear();
  int64_t token = 0;
  for (size_t row = 0; row < num_new.size(); ++row) {
    const int64_t computed = num_computed[row];
    const int64_t tokens = num_new[row];
    const int64_t offset = checkpoint_offsets.empty() ? 0 : checkpoint_offsets[row];
    COLUBER_CHECK(computed >= 0 && tokens >= 0 && offset >= 0 && (offset == 0 || offset < tokens),
                  "row {}: {} computed, {} new, checkpoint after {}", row, computed, tokens, offset);
    const auto id = static_cast<int32_t>(row);
    token = append_pieces(chunk_size, computed, offset, token, id, out);
    out.checkpoint_chunk_indices.push_back(offset > 0 ? static_cast<int32_t>(out.seq_idx.size()) - 1 : -1);
    token = append_pieces(chunk_size, computed + offset, tokens - offset, token, id, out);
    out.last_chunk_indices.push_back(tokens > 0 ? static_cast<int32_t>(out.seq_idx.size()) - 1 : -1);
  }
  out.cu_chunk_seqlen.push_back(static_cast<int32_t>(token));
}

Mamba2AttentionMetadataBuilder::Mamba2AttentionMetadataBuilder(const KVCacheSpec& spec,
                                                               std::vector<std::string> layer_names,
                                                               const EngineConfig& config, Device&)
    : base_(spec, std::move(layer_names), config, "Mamba2AttentionMetadataBuilder"),
      checkpoints_(base_.spec(), config),
      chunk_size_(config.mamba_chunk_size) {
  if (chunk_size_ < 1)
    throw make_error(ErrorCode::kInvalidConfig, "mamba_chunk_size is {}, expected at least 1", chunk_size_);
}

const Mamba2AttentionMetadata& Mamba2AttentionMetadataBuilder::build(int64_t, const CommonAttentionMetadata& common,
                                                                     bool) {
  base_.build(common, metadata_);
  metadata_.chunk_size = chunk_size_;
  metadata_.prep_initial_states =
      std::any_of(metadata_.has_initial_states_p.begin(), metadata_.has_initial_states_p.end(),
                  [](uint8_t has) { return has != 0; });
  prefill_rows_.clear();
  num_computed_.clear();
  num_new_.clear();
  for (int64_t row = metadata_.num_decodes; row < common.num_reqs; ++row) {
    prefill_rows_.push_back(row);
    num_computed_.push_back(std::max(common.num_computed(row), 0));
    num_new_.push_back(common.query_len(row));
  }
  checkpoints_.build(common, prefill_rows_, metadata_.checkpoint);
  compute_chunk_metadata(chunk_size_, num_computed_, num_new_, metadata_.checkpoint.checkpoint_offsets, chunks_);
  metadata_.cu_chunk_seqlen_p = chunks_.cu_chunk_seqlen;
  metadata_.seq_idx_p = chunks_.seq_idx;
  metadata_.last_chunk_indices_p = chunks_.last_chunk_indices;
  metadata_.checkpoint_chunk_indices = chunks_.checkpoint_chunk_indices;
  return metadata_;
}

const Mamba2AttentionMetadata& Mamba2AttentionMetadataBuilder::update_block_table(
    const Mamba2AttentionMetadata& metadata, const BlockTableView& table) {
  if (&metadata != &metadata_) metadata_ = metadata;
  base_.update_block_table(metadata_, table, metadata_);
  PrefillCheckpointMetadata& checkpoint = metadata_.checkpoint;
  for (size_t i = 0; i < checkpoint.block_cols.size(); ++i) {
    const int64_t col = checkpoint.block_cols[i];
    if (col < 0) continue;
    COLUBER_CHECK(col < table.cols, "checkpoint in column {} of a block table of {}", col, table.cols);
    checkpoint.state_indices[i] = table.at(checkpoint.request_rows[i], col);
  }
  return metadata_;
}

BuilderFactory Mamba2AttentionBackend::get_builder_cls() const {
  return [](const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config, Device& device) {
    return std::make_unique<Mamba2AttentionMetadataBuilder>(spec, std::move(layer_names), config, device);
  };
}

}  // namespace coluber
