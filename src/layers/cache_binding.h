// SPDX-License-Identifier: Apache-2.0
//
// From the layers registered in a configuration to layouts, bound pages and metadata builders: what the engine calls
// once, before its first step. Layers get strided views; the pools keep owning the memory and must outlive the layers'
// use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/page_pool.h"
#include "cache/shared_layout.h"
#include "coluber/backend.h"
#include "coluber/config.h"
#include "coluber/mamba_base.h"

namespace coluber {

// What every registered layer asks for.
struct LayerSpecs {
  std::vector<LayerStateSpec> states;
  std::vector<LayerAttentionSpec> attention;
};
LayerSpecs gather_layer_specs(const EngineConfig& config);

struct CacheLayouts {
  StateLayout state;
  AttentionLayout attention;
  int64_t blocks_per_slot = 0;  // of the pool that attention pages come from; 0: states have a pool of their own
};
// Asks every registered layer for its spec.
CacheLayouts make_cache_layouts(const EngineConfig& config, StatePacking packing = StatePacking::kAligned);
// Pages of one size (cache/shared_layout.h); the configuration has the unified block size and padding.
CacheLayouts make_shared_cache_layouts(const EngineConfig& config);

// Hands each recurrent layer its pages in `pool`, whose pages are slots of the layout. Throws Error(kInvalidConfig)
// where the pool's page size is not the layout's.
void bind_state_layers(const EngineConfig& config, const StateLayout& layout, const PagePool& pool);
void bind_attention_layers(const EngineConfig& config, const AttentionLayout& layout, const PagePool& pool);

// Layers that read the same metadata: equal backend and equal in every field of the spec that a builder reads.
struct MetadataGroup {
  std::string backend;  // class name
  KVCacheSpec spec;     // of the first layer
  std::vector<std::string> layer_names;
  std::vector<int> layer_indices;
  std::unique_ptr<AttentionMetadataBuilder> builder;
};
std::vector<MetadataGroup> make_metadata_groups(const EngineConfig& config, Device& device);

}  // namespace coluber
