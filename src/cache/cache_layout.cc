// SPDX-License-Identifier: Apache-2.0
#include "cache/cache_layout.h"

#include "base/error.h"
#include "cache/arithmetic.h"
#include "cache/state_tag.h"

namespace coluber {
// Whole sizes and names, no padding bytes: what is hashed is the same on every machine.
std::string describe_placed(const LayerStateSpec& layer, const StateLayout::Layer& placed) {
  std::string text = fmt::format("{}@{}+{};", placed.layer_index, placed.offset, placed.page_bytes);
  for (size_t i = 0; i < layer.spec.shapes.size(); ++i) {
    const StateLaneOrder order = layer.lane_order.empty() ? StateLaneOrder::kContract : layer.lane_order[i];
    text += fmt::format("{}:{}:{}:{};", placed.state_offsets[i], layer.spec.shapes[i].to_string(),
                        dtype_name(layer.spec.dtypes[i]), static_cast<int>(order));
  }
  return text;
}

namespace {

void place_rings(const std::vector<LayerStateSpec>& layers, StateLayout& layout, std::string& description) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::vector<Shape>& shapes = layers[i].ring_shapes;
    if (shapes.empty()) continue;
    if (layout.ring_count_offset < 0) {
      layout.ring_count_offset = layout.slot_bytes;
      layout.slot_bytes = checked_add(layout.slot_bytes, kStateAlignment);
    }
    StateLayout::Layer& placed = layout.layers[i];
    placed.ring_offset = layout.slot_bytes;
    placed.ring_offsets =
        state_offsets(shapes, std::vector<DType>(shapes.size(), DType::kFloat32), kStateAlignment, &placed.ring_bytes);
    placed.ring_bytes = round_up(placed.ring_bytes, kStateAlignment);
    layout.slot_bytes = checked_add(layout.slot_bytes, placed.ring_bytes);
    description += fmt::format("ring {}@{}+{};", placed.layer_index, placed.ring_offset, placed.ring_bytes);
  }
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
    description += describe_placed(layer, placed);
    layout.layers.push_back(std::move(placed));
  }
  layout.state_bytes = layout.slot_bytes;
  place_rings(layers, layout, description);
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
