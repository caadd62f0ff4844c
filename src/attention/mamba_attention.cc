// SPDX-License-Identifier: Apache-2.0
#include "attention/mamba_attention.h"

#include <algorithm>
#include <utility>

#include "attention/batch_order.h"
#include "base/error.h"
#include "cache/arithmetic.h"
#include "cache/checkpoint_position.h"

namespace coluber {

void compute_causal_conv1d_metadata(std::span<const int32_t> query_start_loc, CausalConv1dMetadata& out) {
  out.programs_per_sequence.clear();
  out.sequence_of_program.clear();
  out.chunk_of_program.clear();
  for (size_t sequence = 0; sequence + 1 < query_start_loc.size(); ++sequence) {
    const int64_t tokens = query_start_loc[sequence + 1] - query_start_loc[sequence];
    COLUBER_CHECK(tokens >= 0, "sequence {} has {} tokens", sequence, tokens);
    const auto programs = static_cast<int32_t>(ceil_div(tokens, kConvTokensPerProgram));
    out.programs_per_sequence.push_back(programs);
    for (int32_t chunk = 0; chunk < programs; ++chunk) {
      out.sequence_of_program.push_back(static_cast<int32_t>(sequence));
      out.chunk_of_program.push_back(chunk);
    }
  }
}

BlockTableView mamba_get_block_table_tensor(const BlockTableView& table, std::span<const int32_t> seq_lens,
                                            int64_t block_size, int64_t num_speculative_blocks, MambaCacheMode mode,
                                            std::vector<int32_t>& storage) {
  if (mode != MambaCacheMode::kAlign) return table;
  COLUBER_CHECK(block_size >= 1 && num_speculative_blocks >= 0, "block size {}, speculative blocks {}", block_size,
                num_speculative_blocks);
  const auto rows = static_cast<int64_t>(seq_lens.size());
  COLUBER_CHECK(table.rows >= rows, "{} rows in the block table, {} in the batch", table.rows, rows);
  const int64_t cols = 1 + num_speculative_blocks;
  storage.resize(static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t last_token = seq_lens[static_cast<size_t>(row)] - 1;
    // A length of 0 pads a graph; its row is all null blocks.
    const int64_t start = std::max<int64_t>(last_token / block_size, 0);
    COLUBER_CHECK(start + cols <= table.cols, "row {} of {} tokens needs columns {} to {} of a block table of {}", row,
                  last_token + 1, start, start + cols, table.cols);
    for (int64_t col = 0; col < cols; ++col)
      storage[static_cast<size_t>(row * cols + col)] = table.at(row, start + col);
  }
  return {storage.data(), rows, cols, cols};
}

void compute_replay_positions(std::span<const int32_t> seq_lens, std::span<const int32_t> query_lens,
                              std::span<const int32_t> decode_base, const ReplayRule& rule,
                              std::vector<int32_t>& write_pos, std::vector<uint8_t>& is_flush) {
  COLUBER_CHECK(query_lens.size() == seq_lens.size() && decode_base.size() == seq_lens.size(),
                "{} lengths, {} query lengths and {} replay bases", seq_lens.size(), query_lens.size(),
                decode_base.size());
  COLUBER_CHECK(rule.buffer_len >= 1 && rule.block_size >= 1, "replay buffer of {}, blocks of {}", rule.buffer_len,
                rule.block_size);
  const bool align = rule.mode == MambaCacheMode::kAlign;
  write_pos.resize(seq_lens.size());
  is_flush.resize(seq_lens.size());
  for (size_t row = 0; row < seq_lens.size(); ++row) {
    write_pos[row] = 0;
    is_flush[row] = 0;
    if (query_lens[row] == 0) continue;
    const int64_t computed = seq_lens[row] - query_lens[row];
    int64_t base = decode_base[row];
    if (align) base = std::max(base, floor_div(computed, rule.block_size) * rule.block_size);
    const int64_t steps = computed - base;
    if (steps < 0) {
      // The last token of a prompt, run as a decode: its state is the first base and is written in full.
      is_flush[row] = 1;
      continue;
    }
    write_pos[row] = static_cast<int32_t>(steps % rule.buffer_len);
    const bool ends_block = align && seq_lens[row] % rule.block_size == 0;
    is_flush[row] = write_pos[row] == rule.buffer_len - 1 || ends_block ? 1 : 0;
  }
}

PrefillCheckpointBuilder::PrefillCheckpointBuilder(const MambaSpec& spec, const EngineConfig& config)
    : active_(spec.mamba_cache_mode == MambaCacheMode::kAlign && spec.num_prefill_checkpoint_blocks > 0),
      block_size_(spec.block_size),
      hash_block_size_(config.cache.hash_block_size.value_or(spec.block_size)),
      alignment_(spec.prefill_checkpoint_alignment),
      drop_last_block_(config.speculative.drop_last_block) {}

void PrefillCheckpointBuilder::build(const CommonAttentionMetadata& common, std::span<const int64_t> request_rows,
                                     PrefillCheckpointMetadata& out) const {
  const size_t rows = request_rows.size();
  out.any = false;
  out.checkpoint_offsets.assign(rows, 0);
  out.state_indices.assign(rows, kNullBlockId);
  out.request_rows.assign(request_rows.begin(), request_rows.end());
  out.block_cols.assign(rows, -1);
  if (!active_) return;
  const PrefillCheckpointRule rule{hash_block_size_, block_size_, alignment_, drop_last_block_};
  for (size_t i = 0; i < rows; ++i) {
    const int64_t row = out.request_rows[i];
    if (common.query_len(row) == 0) continue;
    const PrefillCheckpoint checkpoint =
        prefill_checkpoint(common.num_computed(row), common.seq_lens[static_cast<size_t>(row)], rule);
    if (!checkpoint.valid) continue;
    COLUBER_CHECK(checkpoint.column < common.block_table.cols, "row {}: checkpoint in column {} of a block table of {}",
                  row, checkpoint.column, common.block_table.cols);
    out.any = true;
    out.checkpoint_offsets[i] = static_cast<int32_t>(checkpoint.offset);
    out.block_cols[i] = checkpoint.column;
    out.state_indices[i] = common.block_table.at(row, checkpoint.column);
  }
}

void build_prefill_exports(const CommonAttentionMetadata& common, int64_t first_prefill, PrefillExports& out) {
  out.starts.clear();
  out.offsets.clear();
  out.blocks.clear();
  if (common.state_exports.empty()) return;
  auto next = common.state_exports.begin();
  for (int64_t row = first_prefill; row < common.num_reqs; ++row) {
    out.starts.push_back(static_cast<int32_t>(out.offsets.size()));
    for (; next != common.state_exports.end() && next->row == row; ++next) {
      COLUBER_CHECK(next->offset > 0 && next->offset < common.query_len(row),
                    "row {} of {} tokens: a state after {} of them is wanted", row, common.query_len(row),
                    next->offset);
      out.offsets.push_back(next->offset);
      out.blocks.push_back(next->block);
    }
  }
  out.starts.push_back(static_cast<int32_t>(out.offsets.size()));
  COLUBER_CHECK(next == common.state_exports.end(), "a state is wanted from inside row {}, which is no prefill",
                next->row);
}

const MambaSpec& require_mamba_spec(const KVCacheSpec& spec, std::string_view builder,
                                    const std::vector<std::string>& layer_names) {
  if (const auto* mamba = std::get_if<MambaSpec>(&spec)) return *mamba;
  std::string names;
  for (const std::string& name : layer_names) names += (names.empty() ? "" : ", ") + name;
  throw make_error(
      ErrorCode::kInvalidConfig,
      "{} needs a MambaSpec, but was given the FullAttentionSpec of the layers [{}]; let those layers name the "
      "full-attention backend",
      builder, names);
}

BaseMambaMetadataBuilder::BaseMambaMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names,
                                                   const EngineConfig& config, std::string_view builder)
    : spec_(require_mamba_spec(spec, builder, layer_names)),
      num_speculative_tokens_(config.speculative.num_speculative_tokens),
      use_replayssm_(config.cache.use_replayssm),
      replayssm_buffer_len_(config.cache.replayssm_buffer_len) {
  if (spec_.block_size < 1)
    throw make_error(ErrorCode::kInvalidConfig, "{}: the spec's block size is {}, expected at least 1", builder,
                     spec_.block_size);
  if (use_replayssm_ && num_speculative_tokens_ > 0)
    throw make_error(ErrorCode::kUnsupported,
                     "{}: use_replayssm together with {} speculative tokens is not supported yet; turn one off",
                     builder, num_speculative_tokens_);
  if (use_replayssm_ && replayssm_buffer_len_ < 1)
    throw make_error(ErrorCode::kInvalidConfig, "{}: replayssm_buffer_len is {}, expected at least 1", builder,
                     replayssm_buffer_len_);
  if (use_replayssm_ && spec_.mamba_cache_mode == MambaCacheMode::kAll)
    throw make_error(ErrorCode::kInvalidConfig, "{}: use_replayssm works in cache modes none and align, found all",
                     builder);
}

void BaseMambaMetadataBuilder::mark_prefilling(const CommonAttentionMetadata& common) {
  prefilling_.resize(static_cast<size_t>(common.num_reqs));
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    const auto r = static_cast<size_t>(row);
    const int32_t len = common.query_len(row);
    const bool has_state = common.seq_lens[r] > len;
    if (common.is_prefilling.empty()) {
      prefilling_[r] = len > 0 && !has_state ? 1 : 0;
      continue;
    }
    const int32_t drafts = common.num_decode_draft_tokens.empty() ? -1 : common.num_decode_draft_tokens[r];
    // A resumed one-token tail of a prompt is a decode. A first chunk never is: its slot holds what an earlier owner
    // left.
    const bool short_tail = has_state && (len == 1 || (drafts >= 0 && len == drafts + 1));
    prefilling_[r] = common.is_prefilling[r] != 0 && !short_tail ? 1 : 0;
  }
}

void BaseMambaMetadataBuilder::gather_state_indices(const BlockTableView& table, BaseMambaAttentionMetadata& out) {
  const BlockTableView states = mamba_get_block_table_tensor(
      table, out.seq_lens, spec_.block_size, spec_.num_speculative_blocks, spec_.mamba_cache_mode, aligned_table_);
  COLUBER_CHECK(states.rows >= out.num_reqs, "{} rows in the block table, {} in the batch", states.rows, out.num_reqs);
  const bool whole_rows = spec_.mamba_cache_mode == MambaCacheMode::kAll;
  out.state_indices_d_cols = whole_rows ? states.cols : 1 + spec_.num_speculative_blocks;
  out.state_indices_p_cols = whole_rows ? states.cols : 1;
  COLUBER_CHECK(states.cols >= out.state_indices_d_cols, "a block table of {} columns, {} state blocks a request",
                states.cols, out.state_indices_d_cols);
  out.state_indices_tensor_d.resize(static_cast<size_t>(out.num_decodes * out.state_indices_d_cols));
  out.state_indices_tensor_p.resize(static_cast<size_t>(out.num_prefills * out.state_indices_p_cols));
  auto d = out.state_indices_tensor_d.begin();
  for (int64_t row = 0; row < out.num_decodes; ++row)
    for (int64_t col = 0; col < out.state_indices_d_cols; ++col) *d++ = states.at(row, col);
  auto p = out.state_indices_tensor_p.begin();
  for (int64_t row = 0; row < out.num_prefills; ++row)
    for (int64_t col = 0; col < out.state_indices_p_cols; ++col) *p++ = states.at(out.num_decodes + row, col);
}

void BaseMambaMetadataBuilder::build_decodes(const CommonAttentionMetadata& common, BaseMambaAttentionMetadata& out) {
  const auto decodes = static_cast<size_t>(out.num_decodes);
  out.has_initial_states_d.resize(decodes);
  query_lens_.resize(decodes);
  for (size_t row = 0; row < decodes; ++row) {
    query_lens_[row] = common.query_len(static_cast<int64_t>(row));
    out.has_initial_states_d[row] = common.seq_lens[row] > query_lens_[row] ? 1 : 0;
  }
  out.query_start_loc_d.clear();
  out.num_accepted_tokens.clear();
  if (num_speculative_tokens_ > 0 && decodes > 0) {
    out.query_start_loc_d.assign(common.query_start_loc.begin(), common.query_start_loc.begin() + out.num_decodes + 1);
    if (common.num_accepted_tokens.empty())
      out.num_accepted_tokens.assign(query_lens_.begin(), query_lens_.end());
    else
      out.num_accepted_tokens.assign(common.num_accepted_tokens.begin(),
                                     common.num_accepted_tokens.begin() + out.num_decodes);
  }
  out.write_pos_d.clear();
  out.is_flush_d.clear();
  if (!use_replayssm_) return;
  COLUBER_CHECK(decodes == 0 || !common.replayssm_decode_base.empty(),
                "replay is on and {} decodes have no replay base", decodes);
  compute_replay_positions(common.seq_lens.first(decodes), query_lens_, common.replayssm_decode_base.first(decodes),
                           {replayssm_buffer_len_, spec_.mamba_cache_mode, spec_.block_size}, out.write_pos_d,
                           out.is_flush_d);
}

void BaseMambaMetadataBuilder::build_prefills(const CommonAttentionMetadata& common,
                                              BaseMambaAttentionMetadata& out) const {
  const auto prefills = static_cast<size_t>(out.num_prefills);
  out.has_initial_states_p.resize(prefills);
  out.query_start_loc_p.resize(prefills + 1);
  const int32_t first_token = common.query_start_loc[static_cast<size_t>(out.num_decodes)];
  for (size_t i = 0; i <= prefills; ++i)
    out.query_start_loc_p[i] = common.query_start_loc[static_cast<size_t>(out.num_decodes) + i] - first_token;
  for (size_t i = 0; i < prefills; ++i)
    out.has_initial_states_p[i] = common.num_computed(out.num_decodes + static_cast<int64_t>(i)) > 0 ? 1 : 0;
  out.ring_counts_p.clear();
  if (use_replayssm_ && !common.replayssm_decode_base.empty()) {
    for (int64_t row = out.num_decodes; row < out.num_reqs; ++row)
      out.ring_counts_p.push_back(
          std::max(common.num_computed(row) - common.replayssm_decode_base[static_cast<size_t>(row)], 0));
  }
  compute_causal_conv1d_metadata(out.query_start_loc_p, out.conv);
}

void BaseMambaMetadataBuilder::build_block_positions(const CommonAttentionMetadata& common,
                                                     BaseMambaAttentionMetadata& out) const {
  out.block_idx_last_scheduled_token.clear();
  out.block_idx_last_computed_token.clear();
  out.block_idx_first_scheduled_token_p.clear();
  out.num_computed_tokens_p.clear();
  if (spec_.mamba_cache_mode != MambaCacheMode::kAll) return;
  const auto column = [&](int64_t tokens) {
    return static_cast<int32_t>(std::max<int64_t>(ceil_div(tokens, spec_.block_size) - 1, 0));
  };
  for (int64_t row = 0; row < out.num_reqs; ++row) {
    const int64_t computed = std::max<int64_t>(common.num_computed(row), 0);
    out.block_idx_last_scheduled_token.push_back(column(common.seq_lens[static_cast<size_t>(row)]));
    out.block_idx_last_computed_token.push_back(column(computed));
    if (row < out.num_decodes) continue;
    out.block_idx_first_scheduled_token_p.push_back(column(computed + 1));
    out.num_computed_tokens_p.push_back(static_cast<int32_t>(computed));
  }
}

void BaseMambaMetadataBuilder::build(const CommonAttentionMetadata& common, BaseMambaAttentionMetadata& out) {
  check_common_metadata(common);
  mark_prefilling(common);
  const bool drafts_were_checked = num_speculative_tokens_ > 0 && !common.num_accepted_tokens.empty();
  SplitOptions options;
  options.decode_threshold = drafts_were_checked ? reorder_batch_threshold() : 1;
  options.treat_short_extends_as_decodes = false;
  const BatchSplit split = split_decodes_and_prefills(common, options, prefilling_);
  out.num_reqs = common.num_reqs;
  out.num_decodes = split.num_decodes;
  out.num_decode_tokens = split.num_decode_tokens;
  out.num_prefills = split.num_prefills;
  out.num_prefill_tokens = split.num_prefill_tokens;
  out.seq_lens.assign(common.seq_lens.begin(), common.seq_lens.end());
  gather_state_indices(common.block_table, out);
  build_decodes(common, out);
  build_prefills(common, out);
  build_prefill_exports(common, out.num_decodes, out.exports);
  build_block_positions(common, out);
}

void BaseMambaMetadataBuilder::update_block_table(const BaseMambaAttentionMetadata& from, const BlockTableView& table,
                                                  BaseMambaAttentionMetadata& out) {
  COLUBER_CHECK(num_speculative_tokens_ == 0, "metadata with speculative tokens is built anew for each group");
  COLUBER_CHECK(table.rows >= from.num_reqs, "{} rows in the block table, {} in the metadata", table.rows,
                from.num_reqs);
  if (&from != &out) out = from;
  gather_state_indices(table, out);
}

}  // namespace coluber
