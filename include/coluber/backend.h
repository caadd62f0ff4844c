// SPDX-License-Identifier: Apache-2.0
//
// An attention backend names the builder of its metadata. Backends are registered by `mamba_type` (vLLM's members) or,
// for kinds of one's own, by the name that a CUSTOM layer's `custom_backend()` gives.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coluber/attention_metadata.h"
#include "coluber/config.h"

namespace coluber {

class Device;

class AttentionMetadataBuilder {
 public:
  virtual ~AttentionMetadataBuilder() = default;
  // The metadata belongs to the builder and is valid until the next build. Allocates nothing once sizes have been seen.
  virtual const AttentionMetadata& build(int64_t common_prefix_len, const CommonAttentionMetadata& common,
                                         bool fast_build = false) = 0;
};

using BuilderFactory = std::function<std::unique_ptr<AttentionMetadataBuilder>(
    const KVCacheSpec& spec, std::vector<std::string> layer_names, const EngineConfig& config, Device& device)>;

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  virtual std::string_view name() const noexcept = 0;  // class name, e.g. "Mamba2AttentionBackend"
  virtual BuilderFactory get_builder_cls() const = 0;
};

// The backend of a `mamba_type`. Throws Error(kInvalidConfig) for kCustom where none is registered under `custom_name`.
const AttentionBackend& get_mamba_attn_backend(MambaAttentionBackendEnum type, std::string_view custom_name = {});
const AttentionBackend& get_full_attn_backend();
// Enters a backend for CUSTOM layers under a name. Throws Error(kInvalidArgument) where the name is taken.
// An empty name registers the one that CUSTOM layers without a name get.
void register_custom_backend(std::string name, std::unique_ptr<AttentionBackend> backend);

}  // namespace coluber
