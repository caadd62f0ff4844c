// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_layout.h"

#include "base/error.h"
#include "cache/arithmetic.h"
#include "cache/state_tag.h"

namespace coluber {
namespace {

// Whole sizes and names, no padding bytes: what is hashed is the same on every machine.
std::string describe(const LayerStateSpec& layer, const StateLayout::Layer& placed) {
  std::string text = fmt::format("{}@{}+{};", placed.layer_index, placed.offset, placed.page_bytes);
  for (size_t i = 0; i < layer.spec.shapes.size(); ++i) {
    const StateLaneOrder order = layer.lane_order.empty() ? StateLaneOrder::kContract : layer.lane_order[i];
    text += fmt::format("{}:{}:{}:{};", placed.state_offsets[i], layer.spec.shapes[i].to_string(),
                        dtype_name(layer.spec.dtypes[i]), static_cast<int>(order));
  }
  return text;
}

}  // namespace

StateLayout make_state_layout(const std::vector<LayerStateSpec>& layers, StatePacking packing) {
  StateLayout layout;
  layout.packing = packing;
  const bool aligned = packing == StatePacking::kAligned;
  std::string description;
  for (const LayerStateSpec& layer : layers) {
    if (!layer.lane_order.empty() && layer.lane_order.size() != layer.spec.shapes.size())
      throw make_error(ErrorCode::kInvalidConfig, "layer '{}' has {} states and {} lane orders, expected one a state",
                       layer.layer_name, layer.spec.shapes.size(), layer.lane_order.size());
    StateLayout::Layer placed;
    placed.layer_name = layer.layer_name;
    placed.layer_index = layer.layer_index;
    // Pages of any length lie on the alignment, so that no layer's elements straddle one.
    placed.offset = round_up(layout.slot_bytes, kStateAlignment);
    placed.state_offsets =
        state_offsets(layer.spec.shapes, layer.spec.dtypes, aligned ? kStateAlignment : 1, &placed.page_bytes);
    placed.page_bytes = aligned ? round_up(placed.page_bytes, kStateAlignment) : layer.spec.page_size_bytes();
    layout.slot_bytes = round_up(checked_add(placed.offset, placed.page_bytes), kStateAlignment);
    description += describe(layer, placed);
    layout.layers.push_back(std::move(placed));
  }
  layout.id = hash_text(description).low;
  return layout;
}

AttentionLayout make_attention_layout(const std::vector<LayerAttentionSpec>& layers) {
  AttentionLayout layout;
  for (const LayerAttentionSpec& layer : layers) {
    if (layout.layers.empty()) layout.block_size = layer.spec.block_size;
    if (layer.spec.block_size != layout.block_size)
      throw make_error(
          ErrorCode::kInvalidConfig,
          "attention layer '{}' has pages of {} tokens, '{}' of {}; layers of one pool need equal block sizes",
          layer.layer_name, layer.spec.block_size, layout.layers[0].layer_name, layout.block_size);
    AttentionLayout::Layer placed{layer.layer_name, layer.layer_index, layout.page_bytes,
                                  round_up(layer.spec.page_size_bytes(), kStateAlignment)};
    layout.page_bytes = checked_add(layout.page_bytes, placed.page_bytes);
    layout.layers.push_back(std::move(placed));
  }
  return layout;
}

}  // namespace coluber
