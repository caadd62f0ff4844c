// SPDX-License-Identifier: Apache-2.0
#include "attention/gdn_attention.h"

#include <algorithm>
#include <utility>

#include "attention/batch_order.h"
#include "base/error.h"
#include "cache/arithmetic.h"

namespace coluber {

GDNAttentionMetadataBuilder::GDNAttentionMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names,
                                                         const EngineConfig& config, Device&)
    : spec_(require_mamba_spec(spec, "GDNAttentionMetadataBuilder", layer_names)),
      num_speculative_tokens_(config.speculative.num_speculative_tokens),
      checkpoints_(spec_, config) {
  if (spec_.block_size < 1)
    throw make_error(ErrorCode::kInvalidConfig,
                     "GDNAttentionMetadataBuilder: the spec's block size is {}, expected at least 1", spec_.block_size);
  if (spec_.mamba_cache_mode == MambaCacheMode::kAll)
    throw make_error(
        ErrorCode::kUnsupported,
        "GDNAttentionMetadataBuilder: mamba_cache_mode is all, which these layers cannot do; use none or align");
}

int64_t GDNAttentionMetadataBuilder::mark_spec_rows(const CommonAttentionMetadata& common) {
  is_spec_.assign(static_cast<size_t>(common.num_reqs), 0);
  if (common.num_decode_draft_tokens.empty() || num_speculative_tokens_ == 0) return 0;
  int64_t count = 0;
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    const int32_t drafts = common.num_decode_draft_tokens[static_cast<size_t>(row)];
    const bool spec = drafts >= 0 && drafts <= num_speculative_tokens_ && common.query_len(row) == drafts + 1;
    is_spec_[static_cast<size_t>(row)] = spec ? 1 : 0;
    count += spec ? 1 : 0;
  }
  return count;
}

void GDNAttentionMetadataBuilder::count_without_spec(const CommonAttentionMetadata& common) {
  // First chunks are prefills whatever their length: their slots hold what an earlier owner left. A resumed chunk of
  // one token is a decode.
  first_chunk_.resize(static_cast<size_t>(common.num_reqs));
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    const auto r = static_cast<size_t>(row);
    const bool prefilling = common.is_prefilling.empty() || common.is_prefilling[r] != 0;
    first_chunk_[r] = prefilling && common.query_len(row) > 0 && common.seq_lens[r] <= common.query_len(row) ? 1 : 0;
  }
  SplitOptions options;
  options.treat_short_extends_as_decodes = false;
  const BatchSplit split = split_decodes_and_prefills(common, options, first_chunk_);
  metadata_.num_decodes = split.num_decodes;
  metadata_.num_decode_tokens = split.num_decode_tokens;
  metadata_.num_prefills = split.num_prefills;
  metadata_.num_prefill_tokens = split.num_prefill_tokens;
  while (metadata_.num_prefills > 0 && common.query_len(metadata_.num_decodes + metadata_.num_prefills - 1) == 0)
    --metadata_.num_prefills;
  for (int64_t i = 0; i < metadata_.num_prefills; ++i) prefill_rows_.push_back(metadata_.num_decodes + i);
}

void GDNAttentionMetadataBuilder::count_with_spec(const CommonAttentionMetadata& common) {
  metadata_.num_decodes = metadata_.num_decode_tokens = 0;
  metadata_.num_prefills = metadata_.num_prefill_tokens = 0;
  metadata_.num_spec_decode_tokens = 0;
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    const int32_t len = common.query_len(row);
    if (is_spec_[static_cast<size_t>(row)] != 0) {
      metadata_.num_spec_decode_tokens += len;
    } else if (len > 0) {
      // Plain decodes beside spec rows count as prefills: a batch never has both kinds of decode.
      ++metadata_.num_prefills;
      metadata_.num_prefill_tokens += len;
      prefill_rows_.push_back(row);
    }
  }
}

void GDNAttentionMetadataBuilder::gather_rows(const CommonAttentionMetadata& common) {
  const BlockTableView states =
      mamba_get_block_table_tensor(common.block_table, common.seq_lens, spec_.block_size, spec_.num_speculative_blocks,
                                   spec_.mamba_cache_mode, aligned_table_);
  GDNAttentionMetadata& out = metadata_;
  const bool has_spec = out.num_spec_decodes > 0;
  out.spec_state_indices_cols = 1 + spec_.num_speculative_blocks;
  COLUBER_CHECK(common.num_reqs == 0 ||
                    (states.rows >= common.num_reqs && states.cols >= (has_spec ? out.spec_state_indices_cols : 1)),
                "a block table of {} rows and {} columns for {} requests of {} state blocks", states.rows, states.cols,
                common.num_reqs, out.spec_state_indices_cols);
  out.spec_sequence_masks.clear();
  out.spec_query_start_loc.clear();
  out.spec_state_indices_tensor.clear();
  out.num_accepted_tokens.clear();
  out.non_spec_query_start_loc.assign(1, 0);
  out.non_spec_state_indices_tensor.clear();
  out.has_initial_state.clear();
  if (has_spec) {
    out.spec_sequence_masks.assign(is_spec_.begin(), is_spec_.end());
    out.spec_query_start_loc.push_back(0);
  }
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    const auto r = static_cast<size_t>(row);
    if (is_spec_[r] != 0) {
      out.spec_query_start_loc.push_back(out.spec_query_start_loc.back() + common.query_len(row));
      for (int64_t col = 0; col < out.spec_state_indices_cols; ++col)
        out.spec_state_indices_tensor.push_back(states.at(row, col));
      // Without a count this is the first check after a prefill: the state lies in the running slot.
      out.num_accepted_tokens.push_back(common.num_accepted_tokens.empty() ? 1 : common.num_accepted_tokens[r]);
    } else {
      out.non_spec_query_start_loc.push_back(out.non_spec_query_start_loc.back() + common.query_len(row));
      out.non_spec_state_indices_tensor.push_back(states.at(row, 0));
      if (out.num_prefills > 0) out.has_initial_state.push_back(common.num_computed(row) > 0 ? 1 : 0);
    }
  }
}

void GDNAttentionMetadataBuilder::gather_tokens(const CommonAttentionMetadata& common) {
  GDNAttentionMetadata& out = metadata_;
  out.spec_token_indx.clear();
  out.non_spec_token_indx.clear();
  if (out.num_spec_decodes == 0) return;
  if (out.num_prefills == 0) {
    // Spec rows alone: the tokens of a padded graph belong to them too.
    const int64_t tokens = std::min(out.num_spec_decodes * (num_speculative_tokens_ + 1), common.num_actual_tokens);
    for (int64_t token = 0; token < tokens; ++token) out.spec_token_indx.push_back(static_cast<int32_t>(token));
    return;
  }
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    const auto r = static_cast<size_t>(row);
    std::vector<int32_t>& tokens = is_spec_[r] != 0 ? out.spec_token_indx : out.non_spec_token_indx;
    for (int32_t token = common.query_start_loc[r]; token < common.query_start_loc[r + 1]; ++token)
      tokens.push_back(token);
  }
}

void GDNAttentionMetadataBuilder::build_prefills(const CommonAttentionMetadata& common) {
  GDNAttentionMetadata& out = metadata_;
  out.prefill_query_start_loc.assign(1, 0);
  out.prefill_state_indices.clear();
  out.prefill_has_initial_state.clear();
  out.chunk_indices.clear();
  out.chunk_offsets.assign(1, 0);
  size_t non_spec = 0;
  size_t prefill = 0;
  for (int64_t row = 0; row < common.num_reqs && prefill < prefill_rows_.size(); ++row) {
    if (is_spec_[static_cast<size_t>(row)] != 0) continue;
    const size_t i = non_spec++;
    if (prefill_rows_[prefill] != row) continue;
    const int32_t len = common.query_len(row);
    out.prefill_query_start_loc.push_back(out.prefill_query_start_loc.back() + len);
    out.prefill_state_indices.push_back(out.non_spec_state_indices_tensor[i]);
    out.prefill_has_initial_state.push_back(out.has_initial_state[i]);
    const auto chunks = static_cast<int32_t>(ceil_div(len, kGdnChunkSize));
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      out.chunk_indices.push_back(static_cast<int32_t>(prefill));
      out.chunk_indices.push_back(chunk);
    }
    out.chunk_offsets.push_back(out.chunk_offsets.back() + chunks);
    ++prefill;
  }
  checkpoints_.build(common, prefill_rows_, out.checkpoint);
  COLUBER_CHECK(common.state_exports.empty() || out.num_spec_decodes == 0,
                "states are wanted from inside prefills beside {} rows with drafts", out.num_spec_decodes);
  build_prefill_exports(common, out.num_decodes, out.exports);
}

const GDNAttentionMetadata& GDNAttentionMetadataBuilder::build(int64_t, const CommonAttentionMetadata& common, bool) {
  check_common_metadata(common);
  metadata_.num_reqs = common.num_reqs;
  metadata_.num_actual_tokens = common.num_actual_tokens;
  metadata_.seq_lens.assign(common.seq_lens.begin(), common.seq_lens.end());
  metadata_.num_spec_decodes = mark_spec_rows(common);
  metadata_.num_spec_decode_tokens = 0;
  prefill_rows_.clear();
  if (metadata_.num_spec_decodes > 0)
    count_with_spec(common);
  else
    count_without_spec(common);
  COLUBER_CHECK(metadata_.num_decodes == 0 || metadata_.num_spec_decodes == 0, "{} decodes beside {} spec rows",
                metadata_.num_decodes, metadata_.num_spec_decodes);
  gather_rows(common);
  gather_tokens(common);
  build_prefills(common);
  return metadata_;
}

BuilderFactory GDNAttentionBackend::get_builder_cls() const {
  return [](const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config, Device& device) {
    return std::make_unique<GDNAttentionMetadataBuilder>(spec, std::move(layer_names), config, device);
  };
}

}  // namespace coluber
