// SPDX-License-Identifier: Apache-2.0
#include "attention/recurrent_attention.h"

#include <memory>
#include <utility>

namespace coluber {

RecurrentAttentionMetadataBuilder::RecurrentAttentionMetadataBuilder(const KVCacheSpec& spec,
                                                                     std::vector<std::string> layer_names,
                                                                     const EngineConfig& config,
                                                                     const std::string& backend)
    : base_(spec, std::move(layer_names), config, backend) {}

const RecurrentAttentionMetadata& RecurrentAttentionMetadataBuilder::build(int64_t,
                                                                           const CommonAttentionMetadata& common,
                                                                           bool) {
  base_.build(common, metadata_);
  return metadata_;
}

BuilderFactory RecurrentAttentionBackend::get_builder_cls() const {
  return [name = name_](const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config,
                        Device&) {
    return std::make_unique<RecurrentAttentionMetadataBuilder>(spec, std::move(layer_names), config, name);
  };
}

}  // namespace coluber
