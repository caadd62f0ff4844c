// SPDX-License-Identifier: Apache-2.0
//
// The backends of recurrent layers that vLLM's enum has no member for (RWKV, xLSTM): CUSTOM ones, found by name. All
// build one metadata, that which recurrent layers share. A kind registers itself beside its layer:
//
//   const RegisterRecurrentBackend kWkv4("wkv4");
//
// One builder a step loop.
#pragma once

#include <string>

#include "attention/mamba_attention.h"

namespace coluber {

struct RecurrentAttentionMetadata : BaseMambaAttentionMetadata {};

class RecurrentAttentionMetadataBuilder : public AttentionMetadataBuilder {
 public:
  RecurrentAttentionMetadataBuilder(const KVCacheSpec& spec, std::vector<std::string> layer_names,
                                    const EngineConfig& config, const std::string& backend);
  const RecurrentAttentionMetadata& build(int64_t common_prefix_len, const CommonAttentionMetadata& common,
                                          bool fast_build = false) override;

 private:
  BaseMambaMetadataBuilder base_;
  RecurrentAttentionMetadata metadata_;
};

class RecurrentAttentionBackend : public AttentionBackend {
 public:
  explicit RecurrentAttentionBackend(std::string name) : name_(std::move(name)) {}
  std::string_view name() const noexcept override { return name_; }
  BuilderFactory get_builder_cls() const override;

 private:
  std::string name_;
};

// At namespace scope of a layer's file. Throws Error(kInvalidArgument) where the name is taken.
struct RegisterRecurrentBackend {
  explicit RegisterRecurrentBackend(const std::string& name) {
    register_custom_backend(name, std::make_unique<RecurrentAttentionBackend>(name));
  }
};

}  // namespace coluber
