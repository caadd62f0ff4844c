// SPDX-License-Identifier: Apache-2.0
#include "coluber/linear_attention.h"

#include <utility>

#include "attention/batch_order.h"
#include "attention/mamba_attention.h"
#include "base/error.h"

namespace coluber {

LinearAttentionMetadataBuilder::LinearAttentionMetadataBuilder(const KVCacheSpec& spec,
                                                               std::vector<std::string> layer_names,
                                                               const EngineConfig&, Device&)
    : spec_(require_mamba_spec(spec, "LinearAttentionMetadataBuilder", layer_names)) {}

const LinearAttentionMetadata& LinearAttentionMetadataBuilder::build(int64_t, const CommonAttentionMetadata& common,
                                                                     bool) {
  check_common_metadata(common);
  SplitOptions options;
  options.decode_threshold = reorder_batch_threshold;
  const BatchSplit split = split_decodes_and_prefills(common, options);
  metadata_.num_decodes = split.num_decodes;
  metadata_.num_decode_tokens = split.num_decode_tokens;
  metadata_.num_prefills = split.num_prefills;
  metadata_.num_prefill_tokens = split.num_prefill_tokens;
  metadata_.query_start_loc.assign(common.query_start_loc.begin(), common.query_start_loc.end());
  metadata_.seq_lens.assign(common.seq_lens.begin(), common.seq_lens.end());
  const BlockTableView states =
      mamba_get_block_table_tensor(common.block_table, common.seq_lens, spec_.block_size, spec_.num_speculative_blocks,
                                   spec_.mamba_cache_mode, aligned_table_);
  COLUBER_CHECK(common.num_reqs == 0 || (states.rows >= common.num_reqs && states.cols >= 1),
                "a block table of {} rows and {} columns for {} requests", states.rows, states.cols, common.num_reqs);
  metadata_.state_indices_tensor.resize(static_cast<size_t>(common.num_reqs));
  metadata_.has_initial_states.resize(static_cast<size_t>(common.num_reqs));
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    const auto r = static_cast<size_t>(row);
    metadata_.state_indices_tensor[r] = states.at(row, 0);
    metadata_.has_initial_states[r] =
        common.seq_lens[r] > common.query_start_loc[r + 1] - common.query_start_loc[r] ? 1 : 0;
  }
  build_prefill_exports(common, metadata_.num_decodes, metadata_.exports);
  return metadata_;
}

std::string_view LinearAttentionBackend::name() const noexcept { return "LinearAttentionBackend"; }

BuilderFactory LinearAttentionBackend::get_builder_cls() const {
  return [](const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config, Device& device) {
    return std::make_unique<LinearAttentionMetadataBuilder>(spec, std::move(layer_names), config, device);
  };
}

}  // namespace coluber
