// SPDX-License-Identifier: Apache-2.0
//
// The backend of short-convolution layers: the shared metadata of recurrent layers, nothing of its own. One builder a
// step loop.
#pragma once

#include "attention/mamba_attention.h"

namespace coluber {

class ShortConvAttentionMetadataBuilder : public AttentionMetadataBuilder {
 public:
  ShortConvAttentionMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names,
                                    const EngineConfig& config, Device& device);
  const ShortConvAttentionMetadata& build(int64_t common_prefix_len, const CommonAttentionMetadata& common,
                                          bool fast_build = false) override;
  const ShortConvAttentionMetadata& update_block_table(const ShortConvAttentionMetadata& metadata,
                                                       const BlockTableView& table);
  int64_t reorder_batch_threshold() const noexcept { return base_.reorder_batch_threshold(); }

 private:
  BaseMambaMetadataBuilder base_;
  ShortConvAttentionMetadata metadata_;
};

class ShortConvAttentionBackend : public AttentionBackend {
 public:
  std::string_view name() const noexcept override { return "ShortConvAttentionBackend"; }
  BuilderFactory get_builder_cls() const override;
};

}  // namespace coluber
