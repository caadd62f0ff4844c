// SPDX-License-Identifier: Apache-2.0
#include "attention/mamba1_attention.h"

#include <utility>

namespace coluber {

Mamba1AttentionMetadataBuilder::Mamba1AttentionMetadataBuilder(const KVCacheSpec& spec,
                                                               std::vector<std::string> layer_names,
                                                               const EngineConfig& config, Device&)
    : base_(spec, std::move(layer_names), config, "Mamba1AttentionMetadataBuilder") {}

const Mamba1AttentionMetadata& Mamba1AttentionMetadataBuilder::build(int64_t, const CommonAttentionMetadata& common,
                                                                     bool) {
  base_.build(common, metadata_);
  return metadata_;
}

const Mamba1AttentionMetadata& Mamba1AttentionMetadataBuilder::update_block_table(
    const Mamba1AttentionMetadata& metadata, const BlockTableView& table) {
  base_.update_block_table(metadata, table, metadata_);
  return metadata_;
}

BuilderFactory Mamba1AttentionBackend::get_builder_cls() const {
  return [](const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config, Device& device) {
    return std::make_unique<Mamba1AttentionMetadataBuilder>(spec, std::move(layer_names), config, device);
  };
}

}  // namespace coluber
