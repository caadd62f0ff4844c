// SPDX-License-Identifier: Apache-2.0
//
// Where each layer's state lies. Recurrent pages are laid out [slot][layer][bytes], so that the whole state of a
// sequence is one contiguous range: a checkpoint, a fork or a transfer is one copy. Attention pages likewise:
// [page][layer][bytes], one page id for all attention layers. Plain values; the pools own the memory, cache_binding.h
// (layers/) hands out the views.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "coluber/kv_cache_spec.h"
#include "coluber/mamba_base.h"

namespace coluber {

enum class StatePacking : uint8_t {
  kAligned,   // each state at a multiple of kStateAlignment bytes: the engine's layout
  kContract,  // the states of a layer back to back, the page padded where its spec says so: the contract's layout
};
inline constexpr int64_t kStateAlignment = 128;

// One layer as the layout sees it.
struct LayerStateSpec {
  std::string layer_name;
  int layer_index = -1;
  MambaSpec spec;
  std::vector<StateLaneOrder> lane_order = {};  // one a state; empty: kContract
  std::vector<Shape> ring_shapes = {};          // float32: the last inputs of a layer that replays them; empty: none
};

struct StateLayout {
  struct Layer {
    std::string layer_name;
    int layer_index = -1;
    int64_t offset = 0;  // of the layer's page in a slot
    int64_t page_bytes = 0;
    std::vector<int64_t> state_offsets;  // in the page
    int64_t ring_offset = 0;             // of the layer's ring in a slot
    int64_t ring_bytes = 0;              // 0: none
    std::vector<int64_t> ring_offsets;   // in the ring
  };
  StatePacking packing = StatePacking::kAligned;
  std::vector<Layer> layers;
  int64_t slot_bytes = 0;   // 0: no recurrent layer
  int64_t state_bytes = 0;  // of them the states, from the first byte on; what a layout without rings has
  // Where a slot counts (int32) the inputs in its rings, which all layers have alike; -1: no rings. Rings lie behind
  // all states: who takes the states alone takes one range.
  int64_t ring_count_offset = -1;

  // Equal exactly where two layouts place equal shapes, dtypes and lane orders at equal bytes; part of every state's
  // tag.
  uint64_t id = 0;
};
// What a layout's id is made of, for one layer.
std::string describe_placed(const LayerStateSpec& layer, const StateLayout::Layer& placed);
StateLayout make_state_layout(const std::vector<LayerStateSpec>& layers, StatePacking packing = StatePacking::kAligned);

struct AttentionLayout {
  struct Layer {
    std::string layer_name;
    int layer_index = -1;
    int64_t offset = 0;
    int64_t page_bytes = 0;
  };
  std::vector<Layer> layers;
  int64_t page_bytes = 0;  // of all layers together; 0: no attention layer
  int64_t block_size = 0;  // tokens of a page
};
struct LayerAttentionSpec {
  std::string layer_name;
  int layer_index = -1;
  FullAttentionSpec spec;
};
// Throws Error(kInvalidConfig) where layers want pages of different numbers of tokens.
AttentionLayout make_attention_layout(const std::vector<LayerAttentionSpec>& layers);

}  // namespace coluber
