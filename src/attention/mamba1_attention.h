// SPDX-License-Identifier: Apache-2.0
//
// The backend of Mamba-1 layers: the shared metadata of recurrent layers, nothing of its own. One builder a step loop.
#pragma once

#include "attention/mamba_attention.h"

namespace coluber {

class Mamba1AttentionMetadataBuilder : public AttentionMetadataBuilder {
 public:
  Mamba1AttentionMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names,
                                 const EngineConfig& config, Device& device);
  const Mamba1AttentionMetadata& build(int64_t common_prefix_len, const CommonAttentionMetadata& common,
                                       bool fast_build = false) override;
  const Mamba1AttentionMetadata& update_block_table(const Mamba1AttentionMetadata& metadata,
                                                    const BlockTableView& table);
  int64_t reorder_batch_threshold() const noexcept { return base_.reorder_batch_threshold(); }

 private:
  BaseMambaMetadataBuilder base_;
  Mamba1AttentionMetadata metadata_;
};

class Mamba1AttentionBackend : public AttentionBackend {
 public:
  std::string_view name() const noexcept override { return "Mamba1AttentionBackend"; }
  BuilderFactory get_builder_cls() const override;
};

}  // namespace coluber
