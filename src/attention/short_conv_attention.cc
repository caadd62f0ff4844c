// SPDX-License-Identifier: Apache-2.0
#include "attention/short_conv_attention.h"

#include <utility>

namespace coluber {

ShortConvAttentionMetadataBuilder::ShortConvAttentionMetadataBuilder(const KVCacheSpec& spec,
                                                                     std::vector<std::string> layer_names,
                                                                     const EngineConfig& config, Device&)
    : base_(spec, std::move(layer_names), config, "ShortConvAttentionMetadataBuilder") {}

const ShortConvAttentionMetadata& ShortConvAttentionMetadataBuilder::build(int64_t,
                                                                           const CommonAttentionMetadata& common,
                                                                           bool) {
  base_.build(common, metadata_);
  return metadata_;
}

const ShortConvAttentionMetadata& ShortConvAttentionMetadataBuilder::update_block_table(
    const ShortConvAttentionMetadata& metadata, const BlockTableView& table) {
  base_.update_block_table(metadata, table, metadata_);
  return metadata_;
}

BuilderFactory ShortConvAttentionBackend::get_builder_cls() const {
  return [](const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config, Device& device) {
    return std::make_unique<ShortConvAttentionMetadataBuilder>(spec, std::move(layer_names), config, device);
  };
}

}  // namespace coluber
