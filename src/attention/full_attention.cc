// SPDX-License-Identifier: Apache-2.0
#include "attention/full_attention.h"

#include <utility>

#include "attention/batch_order.h"
#include "base/error.h"
#include "cache/arithmetic.h"

namespace coluber {

FullAttentionMetadataBuilder::FullAttentionMetadataBuilder(const KVCacheSpec& spec,
                                                           std::vector<std::string> layer_names, const EngineConfig&,
                                                           Device&) {
  const auto* attention = std::get_if<FullAttentionSpec>(&spec);
  if (attention == nullptr)
    throw make_error(ErrorCode::kInvalidConfig,
                     "FullAttentionMetadataBuilder needs a FullAttentionSpec, but was given the MambaSpec of '{}'",
                     layer_names.empty() ? "?" : layer_names.front());
  spec_ = *attention;
  if (spec_.block_size < 1)
    throw make_error(ErrorCode::kInvalidConfig,
                     "FullAttentionMetadataBuilder: the spec's block size is {}, expected at least 1",
                     spec_.block_size);
}

const FullAttentionMetadata& FullAttentionMetadataBuilder::build(int64_t, const CommonAttentionMetadata& common, bool) {
  check_common_metadata(common);
  const auto tokens = static_cast<size_t>(common.query_start_loc[static_cast<size_t>(common.num_reqs)]);
  COLUBER_CHECK(common.slot_mapping.size() >= tokens, "{} slots for {} tokens", common.slot_mapping.size(), tokens);
  COLUBER_CHECK(common.block_table.rows >= common.num_reqs, "{} rows in the block table, {} in the batch",
                common.block_table.rows, common.num_reqs);
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    const int64_t pages = ceil_div(common.seq_lens[static_cast<size_t>(row)], spec_.block_size);
    COLUBER_CHECK(common.query_len(row) == 0 || pages <= common.block_table.cols,
                  "row {} needs {} pages, its table has {} columns", row, pages, common.block_table.cols);
  }
  metadata_.num_reqs = common.num_reqs;
  metadata_.num_actual_tokens = common.num_actual_tokens;
  metadata_.max_query_len = common.max_query_len;
  metadata_.max_seq_len = common.max_seq_len;
  metadata_.query_start_loc = common.query_start_loc;
  metadata_.seq_lens = common.seq_lens;
  metadata_.block_table = common.block_table;
  metadata_.slot_mapping = common.slot_mapping;
  return metadata_;
}

BuilderFactory FullAttentionBackend::get_builder_cls() const {
  return [](const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config, Device& device) {
    return std::make_unique<FullAttentionMetadataBuilder>(spec, std::move(layer_names), config, device);
  };
}

}  // namespace coluber
