// SPDX-License-Identifier: Apache-2.0
#include "cache/shared_layout.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "cache/arithmetic.h"
#include "cache/state_tag.h"

namespace coluber {
namespace {

constexpr const char* kRemedy = "use --cache-layout elastic, which needs no equal pages";

int64_t bytes_per_token(const FullAttentionSpec& spec) { return spec.page_size_bytes() / spec.block_size; }

void check_attention(const std::vector<LayerAttentionSpec>& layers) {
  for (const LayerAttentionSpec& layer : layers)
    if (bytes_per_token(layer.spec) != bytes_per_token(layers[0].spec) || layer.spec != layers[0].spec)
      throw make_error(
          ErrorCode::kInvalidConfig,
          "cache layout shared: attention layer '{}' keeps {} bytes a token ({} heads of {}) and '{}' {} bytes "
          "a token ({} heads of {}); the pages of one pool must be equal; {}",
          layer.layer_name, bytes_per_token(layer.spec), layer.spec.num_kv_heads, layer.spec.head_size,
          layers[0].layer_name, bytes_per_token(layers[0].spec), layers[0].spec.num_kv_heads, layers[0].spec.head_size,
          kRemedy);
}

// Every group as large as the attention layers' one; without attention as the rules choose.
std::vector<KVCacheGroup> groups_of(const std::vector<LayerStateSpec>& states, size_t num_attention) {
  std::vector<NamedSpec> specs;
  for (const LayerStateSpec& layer : states) specs.push_back({layer.layer_name, layer.spec});
  std::optional<int64_t> size;
  if (num_attention > 0) size = static_cast<int64_t>(num_attention);
  return group_kv_cache_specs(specs, size);
}

}  // namespace

UnifiedPageSize unify_layers(const std::vector<LayerStateSpec>& states,
                             const std::vector<LayerAttentionSpec>& attention, UnifyPageSizeInput rules) {
  check_attention(attention);
  rules.mamba_page_bytes = 0;
  for (const LayerStateSpec& layer : states)
    rules.mamba_page_bytes = std::max(rules.mamba_page_bytes, layer.spec.state_content_size_bytes());
  if (attention.empty()) {
    UnifiedPageSize alone;
    alone.attention_block_size = rules.block_size;
    alone.mamba_block_size = rules.user_mamba_block_size;
    alone.page_size_bytes = round_up(rules.mamba_page_bytes, kStateAlignment);
    alone.mamba_page_size_padded = alone.page_size_bytes;
    return alone;
  }
  rules.attention_bytes_per_token = bytes_per_token(attention[0].spec);
  UnifiedPageSize unified = unify_page_size(rules);
  // Layers of smaller states are padded too.
  if (!states.empty()) unified.mamba_page_size_padded = unified.page_size_bytes;
  return unified;
}

SharedLayout make_shared_layout(const std::vector<LayerStateSpec>& states,
                                const std::vector<LayerAttentionSpec>& attention) {
  SharedLayout shared;
  check_attention(attention);
  const std::vector<KVCacheGroup> groups = groups_of(states, attention.size());
  int64_t layers_a_block = std::ssize(attention);
  for (const KVCacheGroup& group : groups) layers_a_block = std::max(layers_a_block, std::ssize(group.layer_names));
  const int64_t page_bytes = attention.empty() ? page_size_bytes(groups[0].spec) : attention[0].spec.page_size_bytes();
  const int64_t block_bytes = checked_mul(layers_a_block, page_bytes);
  for (const LayerAttentionSpec& layer : attention) {
    shared.attention.block_size = layer.spec.block_size;
    shared.attention.layers.push_back(
        {layer.layer_name, layer.layer_index, std::ssize(shared.attention.layers) * page_bytes, page_bytes});
  }
  shared.attention.page_bytes = attention.empty() ? 0 : block_bytes;
  shared.blocks_per_slot = std::ssize(groups);
  std::string description = fmt::format("shared {}*{};", shared.blocks_per_slot, block_bytes);
  for (const LayerStateSpec& layer : states) {
    if (!layer.ring_shapes.empty())
      throw make_error(ErrorCode::kInvalidConfig,
                       "cache layout shared: layer '{}' replays its last inputs, which the contract's pages have no "
                       "place for; turn replay off (--no-use-replayssm), or {}",
                       layer.layer_name, kRemedy);
    if (layer.spec.page_size_bytes() != page_bytes)
      throw make_error(ErrorCode::kInvalidConfig,
                       "cache layout shared: a page of layer '{}' has {} bytes, one of the others {}; {}",
                       layer.layer_name, layer.spec.page_size_bytes(), page_bytes, kRemedy);
    size_t group = 0;
    auto place = groups[0].layer_names.begin();
    for (; group < groups.size(); ++group) {
      place = std::ranges::find(groups[group].layer_names, layer.layer_name);
      if (place != groups[group].layer_names.end()) break;
    }
    StateLayout::Layer placed;
    placed.layer_name = layer.layer_name;
    placed.layer_index = layer.layer_index;
    placed.offset =
        static_cast<int64_t>(group) * block_bytes + (place - groups[group].layer_names.begin()) * page_bytes;
    placed.page_bytes = page_bytes;
    placed.state_offsets = state_offsets(layer.spec.shapes, layer.spec.dtypes, 1);
    description += describe_placed(layer, placed);
    shared.state.layers.push_back(std::move(placed));
  }
  shared.state.packing = StatePacking::kContract;
  shared.state.slot_bytes = shared.state.state_bytes = shared.blocks_per_slot * block_bytes;
  shared.state.id = hash_text(description).low;
  return shared;
}

}  // namespace coluber
