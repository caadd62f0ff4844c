// SPDX-License-Identifier: Apache-2.0
#include "cache/shared_layout.h"

#include <gtest/gtest.h>

#include "coluber/error.h"

namespace coluber {
namespace {

LayerStateSpec state_layer(const std::string& name, int index, std::vector<Shape> shapes, int64_t padded) {
  LayerStateSpec layer;
  layer.layer_name = name;
  layer.layer_index = index;
  layer.spec.block_size = 4096;
  layer.spec.dtypes.assign(shapes.size(), DType::kFloat32);
  layer.spec.shapes = std::move(shapes);
  if (padded > 0) layer.spec.page_size_padded = padded;
  return layer;
}

LayerAttentionSpec attention_layer(const std::string& name, int index, int64_t head_size, int64_t block_size = 16) {
  LayerAttentionSpec layer{name, index, {}};
  layer.spec.block_size = block_size;
  layer.spec.num_kv_heads = 1;
  layer.spec.head_size = head_size;
  return layer;
}

std::string refusal(const auto& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    return error.what();
  }
  return "nothing was refused";
}

TEST(SharedLayout, TheBlockGrowsUntilThePagesAreEqual) {
  const std::vector<LayerStateSpec> states = {state_layer("small", 0, {{10}}, 0),
                                              state_layer("large", 1, {{3, 100}}, 0)};
  const std::vector<LayerAttentionSpec> attention = {attention_layer("attention", 2, 8)};  // 64 bytes a token
  UnifyPageSizeInput rules;
  rules.block_size = 4;
  const UnifiedPageSize unified = unify_layers(states, attention, rules);
  EXPECT_EQ(unified.attention_block_size, 32);  // 1200 bytes are 19 tokens; in steps of 16
  EXPECT_EQ(unified.page_size_bytes, 32 * 64);
  EXPECT_EQ(unified.mamba_page_size_padded, 32 * 64);
}

TEST(SharedLayout, EachGroupOfRecurrentLayersTakesABlockOfItsOwn) {
  std::vector<LayerStateSpec> states;
  for (int i = 0; i < 5; ++i) states.push_back(state_layer("r" + std::to_string(i), i, {{2, 3}, {10}}, 1024));
  const std::vector<LayerAttentionSpec> attention = {attention_layer("a0", 5, 8), attention_layer("a1", 6, 8)};
  const SharedLayout shared = make_shared_layout(states, attention);
  EXPECT_EQ(shared.attention.page_bytes, 2 * 1024);
  EXPECT_EQ(shared.attention.layers[1].offset, 1024);
  EXPECT_EQ(shared.blocks_per_slot, 3);  // two, two and one
  EXPECT_EQ(shared.state.slot_bytes, 3 * 2048);
  std::vector<int64_t> offsets;
  for (const StateLayout::Layer& layer : shared.state.layers) offsets.push_back(layer.offset);
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 2048, 4096, 1024, 3072}));  // every third layer into one group
  EXPECT_EQ(shared.state.layers[0].state_offsets, (std::vector<int64_t>{0, 24}));
  EXPECT_NE(shared.state.id, make_shared_layout({states.begin(), states.begin() + 4}, attention).state.id);
}

TEST(SharedLayout, WithoutAttentionTheLargestStateGivesThePage) {
  const std::vector<LayerStateSpec> states = {state_layer("a", 0, {{100}}, 0), state_layer("b", 1, {{33}}, 0)};
  const UnifiedPageSize unified = unify_layers(states, {}, {});
  EXPECT_EQ(unified.page_size_bytes, 512);
  EXPECT_EQ(unified.mamba_page_size_padded, 512);
}

TEST(SharedLayout, LayersThatCannotBeEqualAreRefusedWithTheirNumbers) {
  const std::vector<LayerAttentionSpec> attention = {attention_layer("a0", 0, 8), attention_layer("a1", 1, 12)};
  const std::string why = refusal([&] { unify_layers({}, attention, {}); });
  for (const char* part : {"'a0'", "64 bytes a token", "'a1'", "96 bytes a token", "--cache-layout elastic"})
    EXPECT_NE(why.find(part), std::string::npos) << why;
  std::vector<LayerStateSpec> ringed = {state_layer("r", 0, {{16}}, 1024)};
  ringed[0].ring_shapes = {{4}};
  EXPECT_NE(refusal([&] { make_shared_layout(ringed, {attention[0]}); }).find("--no-use-replayssm"), std::string::npos);
}

}  // namespace
}  // namespace coluber
