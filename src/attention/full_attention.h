// SPDX-License-Identifier: Apache-2.0
//
// The backend of softmax attention layers: every row by its pages, in whatever order the rows come. One builder a step
// loop.
#pragma once

#include <string>
#include <vector>

#include "coluber/backend.h"

namespace coluber {

class FullAttentionMetadataBuilder : public AttentionMetadataBuilder {
 public:
  // Throws Error(kInvalidConfig) where `spec` is not a FullAttentionSpec.
  FullAttentionMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names,
                               const EngineConfig& config, Device& device);
  // Borrows the spans of `common`.
  const FullAttentionMetadata& build(int64_t common_prefix_len, const CommonAttentionMetadata& common,
                                     bool fast_build = false) override;

 private:
  FullAttentionSpec spec_;
  FullAttentionMetadata metadata_;
};

class FullAttentionBackend : public AttentionBackend {
 public:
  std::string_view name() const noexcept override { return "FullAttentionBackend"; }
  BuilderFactory get_builder_cls() const override;
};

}  // namespace coluber
