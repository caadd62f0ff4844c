// SPDX-License-Identifier: Apache-2.0
#include "layers/cache_binding.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace coluber {

LayerSpecs gather_layer_specs(const EngineConfig& config) {
  LayerSpecs specs;
  for (const AttentionLayerBase* layer : config.layers) {
    const KVCacheSpec spec = layer->get_kv_cache_spec(config);
    if (const auto* mamba = std::get_if<MambaSpec>(&spec)) {
      const auto* recurrent = dynamic_cast<const MambaBase*>(layer);
      if (recurrent == nullptr)
        throw make_error(ErrorCode::kInvalidConfig,
                         "layer '{}' gives a MambaSpec but is no MambaBase; derive it from MambaBase",
                         layer->layer_name());
      std::vector<StateLaneOrder> orders = recurrent->get_state_lane_order();
      orders.resize(mamba->shapes.size(), StateLaneOrder::kContract);  // scales
      specs.states.push_back(
          {layer->layer_name(), layer->layer_index(), *mamba, std::move(orders), recurrent->get_replayssm_shape()});
    } else {
      specs.attention.push_back({layer->layer_name(), layer->layer_index(), std::get<FullAttentionSpec>(spec)});
    }
  }
  return specs;
}

CacheLayouts make_cache_layouts(const EngineConfig& config, StatePacking packing) {
  const LayerSpecs specs = gather_layer_specs(config);
  return {make_state_layout(specs.states, packing), make_attention_layout(specs.attention), 0};
}

CacheLayouts make_shared_cache_layouts(const EngineConfig& config) {
  const LayerSpecs specs = gather_layer_specs(config);
  SharedLayout shared = make_shared_layout(specs.states, specs.attention);
  return {std::move(shared.state), std::move(shared.attention), shared.blocks_per_slot};
}

namespace {

TensorView page_view(const PagePool& pool, int64_t offset, int64_t page_bytes) {
  TensorView view;
  view.data = pool.base() + offset;
  view.dtype = DType::kInt8;
  view.shape = Shape{pool.max_pages(), 1, 1, page_bytes};
  view.strides = Shape{pool.stride_bytes(), page_bytes, page_bytes, 1};
  return view;
}

AttentionLayerBase& layer_at(const EngineConfig& config, int index, const std::string& name) {
  COLUBER_CHECK(index >= 0 && static_cast<size_t>(index) < config.layers.size() &&
                    config.layers[static_cast<size_t>(index)]->layer_name() == name,
                "the layout has layer '{}' at index {} of {}, where the configuration has another", name, index,
                config.layers.size());
  return *config.layers[static_cast<size_t>(index)];
}

void check_pool(const PagePool& pool, int64_t layout_bytes) {
  if (pool.page_bytes() != layout_bytes)
    throw make_error(ErrorCode::kInvalidConfig, "pool '{}' has pages of {} bytes, the layout needs {}", pool.name(),
                     pool.page_bytes(), layout_bytes);
}

}  // namespace

void bind_state_layers(const EngineConfig& config, const StateLayout& layout, const PagePool& pool) {
  check_pool(pool, layout.slot_bytes);
  for (const StateLayout::Layer& placed : layout.layers) {
    auto* layer = dynamic_cast<MambaBase*>(&layer_at(config, placed.layer_index, placed.layer_name));
    COLUBER_CHECK(layer != nullptr, "layer '{}' is no MambaBase", placed.layer_name);
    layer->bind_kv_cache(page_view(pool, placed.offset, placed.page_bytes), placed.state_offsets);
    if (placed.ring_bytes > 0)
      layer->bind_replayssm_cache(page_view(pool, placed.ring_offset, placed.ring_bytes), placed.ring_offsets);
  }
}

void bind_attention_layers(const EngineConfig& config, const AttentionLayout& layout, const PagePool& pool) {
  check_pool(pool, layout.page_bytes);
  for (const AttentionLayout::Layer& placed : layout.layers)
    layer_at(config, placed.layer_index, placed.layer_name)
        .bind_kv_cache(page_view(pool, placed.offset, placed.page_bytes));
}

namespace {

bool read_same_metadata(const KVCacheSpec& a, const KVCacheSpec& b) {
  const auto* x = std::get_if<MambaSpec>(&a);
  const auto* y = std::get_if<MambaSpec>(&b);
  if (x == nullptr || y == nullptr) {
    if (x != y) return false;
    return std::get<FullAttentionSpec>(a).block_size == std::get<FullAttentionSpec>(b).block_size;
  }
  // Builders read tokens and blocks; shapes and dtypes are the layers' own business.
  return x->block_size == y->block_size && x->mamba_type == y->mamba_type &&
         x->mamba_cache_mode == y->mamba_cache_mode && x->num_speculative_blocks == y->num_speculative_blocks &&
         x->num_prefill_checkpoint_blocks == y->num_prefill_checkpoint_blocks &&
         x->prefill_checkpoint_alignment == y->prefill_checkpoint_alignment;
}

}  // namespace

std::vector<MetadataGroup> make_metadata_groups(const EngineConfig& config, Device& device) {
  std::vector<MetadataGroup> groups;
  std::vector<const AttentionBackend*> backends;
  for (const AttentionLayerBase* layer : config.layers) {
    const AttentionBackend& backend = layer->get_attn_backend();
    KVCacheSpec spec = layer->get_kv_cache_spec(config);
    size_t i = 0;
    while (i < groups.size() && (backends[i] != &backend || !read_same_metadata(groups[i].spec, spec))) ++i;
    if (i == groups.size()) {
      groups.push_back({std::string(backend.name()), std::move(spec), {}, {}, nullptr});
      backends.push_back(&backend);
    }
    groups[i].layer_names.push_back(layer->layer_name());
    groups[i].layer_indices.push_back(layer->layer_index());
  }
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i].builder = backends[i]->get_builder_cls()(groups[i].spec, groups[i].layer_names, config, device);
  return groups;
}

}  // namespace coluber
