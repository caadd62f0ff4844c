// SPDX-License-Identifier: Apache-2.0
#include "cache/state_shape.h"

#include <gtest/gtest.h>

#include <functional>

#include "cache/cache_layout.h"
#include "coluber/error.h"
#include "coluber/kv_cache_spec.h"

namespace coluber {
namespace {

int64_t bytes(const std::vector<Shape>& shapes, std::vector<DType> dtypes) {
  MambaSpec spec;
  spec.shapes = shapes;
  spec.dtypes = std::move(dtypes);
  return spec.state_content_size_bytes();
}

// The message must name every one of these words.
void expect_refused(const std::function<void()>& call, std::initializer_list<std::string_view> words) {
  try {
    call();
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    for (const std::string_view word : words)
      EXPECT_NE(std::string_view(error.what()).find(word), std::string_view::npos) << error.what();
  }
}

constexpr DType kBf16 = DType::kBFloat16;
constexpr DType kF32 = DType::kFloat32;

TEST(StateShape, PublishedModelsHaveTheKnownPageBytes) {
  EXPECT_EQ(bytes(mamba1_state_shape(1, 1536, 16, 4), {kBf16, kBf16}), 58368);
  EXPECT_EQ(bytes(mamba1_state_shape(1, 1536, 16, 4), {kF32, kF32}), 116736);
  EXPECT_EQ(bytes(mamba1_state_shape(2, 1536, 16, 4), {kBf16, kBf16}), 29184);
  EXPECT_EQ(bytes(mamba2_state_shape(1, {8192, 8, 128, 64, 128, 4}), {kBf16, kBf16}), 2158592);
  EXPECT_EQ(bytes(mamba2_state_shape(8, {8192, 8, 128, 64, 128, 4}), {kBf16, kBf16}), 269824);
  EXPECT_EQ(bytes(mamba2_state_shape(4, {8192, 1, 128, 64, 128, 4}), {kBf16, kF32}), 1062400);
  EXPECT_EQ(bytes(mamba2_state_shape(4, {512, 3, 8, 64, 128, 4}, 3), {kBf16, kF32}), 70144);
  EXPECT_EQ(bytes(gated_delta_net_state_shape(1, {16, 32, 128, 128, 4}), {kBf16, kBf16}), 1097728);
  EXPECT_EQ(bytes(gated_delta_net_state_shape(4, {16, 32, 128, 128, 4}, 2), {kBf16, kF32}), 544768);
  EXPECT_EQ(bytes(kda_state_shape(1, {32, 128, {}, {}, 4}), {kBf16, kF32}), 2170880);
  EXPECT_EQ(bytes(kda_state_shape(8, {32, 128, {}, {}, 4}, 3), {kBf16, kF32}), 280576);
  EXPECT_EQ(bytes(linear_attention_state_shape(8, 64, 128), {kF32}), 524288);
  EXPECT_EQ(bytes(linear_attention_state_shape(8, 64, 128), {kBf16}), 262144);
  EXPECT_EQ(bytes(short_conv_state_shape(1, 2048, 3), {kBf16}), 8192);
  EXPECT_EQ(bytes(short_conv_state_shape(2, 2048, 3, 4), {kBf16}), 12288);
}

TEST(StateShape, SpeculationWidensConvWindowsButNotMamba1) {
  EXPECT_EQ(short_conv_state_shape(1, 64, 3, 4)[0], (Shape{6, 64}));
  EXPECT_EQ(mamba2_state_shape(1, {512, 4, 8, 64, 128, 4}, 3)[0], (Shape{6, 512 + 2 * 4 * 128}));
  EXPECT_EQ(mamba1_state_shape(1, 64, 16, 4)[0], (Shape{3, 64}));
}

TEST(StateShape, GroupsThatDoNotDivideAreReplicatedToOneARank) {
  EXPECT_EQ(extended_num_groups(4, 3), 4);
  EXPECT_EQ(extended_num_groups(4, 8), 8);
  EXPECT_EQ(extended_num_groups(4, extended_num_groups(4, 3)), 4);
  EXPECT_EQ(mamba2_state_shape(4, {512, 3, 8, 64, 128, 4})[0], (Shape{3, (512 + 2 * 4 * 128) / 4}));
}

TEST(StateShape, TheRingOfReplayHasXDtAndB) {
  const Mamba2StateSizes sizes{512, 4, 8, 64, 128, 4};
  EXPECT_EQ(mamba2_replayssm_shape(1, sizes, 16), (std::vector<Shape>{{8, 16, 64}, {8, 16}, {4, 16, 128}}));
  EXPECT_EQ(mamba2_replayssm_shape(2, sizes, 6), (std::vector<Shape>{{4, 6, 64}, {4, 6}, {2, 6, 128}}));
  EXPECT_THROW(mamba2_replayssm_shape(8, sizes, 16), Error) << "no whole group for each rank";
  EXPECT_THROW(mamba2_replayssm_shape(1, sizes, 0), Error);
}

// Behind all states, so that these are where they are without rings.
TEST(StateLayout, RingsLieBehindTheStates) {
  MambaSpec spec;
  spec.shapes = {Shape{3, 8}, Shape{2, 4, 8}};
  spec.dtypes = {DType::kFloat32, DType::kBFloat16};
  const std::vector<Shape> ring = {Shape{2, 5, 4}, Shape{2, 5}, Shape{1, 5, 8}};
  const std::vector<LayerStateSpec> plain = {{"a", 0, spec}, {"b", 1, spec}};
  const std::vector<LayerStateSpec> replaying = {{"a", 0, spec, {}, ring}, {"b", 1, spec, {}, ring}};
  const StateLayout without = make_state_layout(plain), with = make_state_layout(replaying);
  EXPECT_EQ(without.ring_count_offset, -1);
  EXPECT_EQ(without.state_bytes, without.slot_bytes);
  EXPECT_EQ(with.state_bytes, without.slot_bytes);
  EXPECT_EQ(with.ring_count_offset, with.state_bytes);
  int64_t end = with.ring_count_offset + static_cast<int64_t>(sizeof(int32_t));
  for (size_t i = 0; i < with.layers.size(); ++i) {
    const StateLayout::Layer& layer = with.layers[i];
    EXPECT_EQ(layer.offset, without.layers[i].offset);
    EXPECT_EQ(layer.state_offsets, without.layers[i].state_offsets);
    EXPECT_GE(layer.ring_offset, end);
    EXPECT_EQ(layer.ring_offset % kStateAlignment, 0);
    EXPECT_EQ(layer.ring_offsets, (std::vector<int64_t>{0, 256, 384}));
    end = layer.ring_offset + layer.ring_bytes;
  }
  EXPECT_EQ(with.slot_bytes, end);
  EXPECT_NE(with.id, without.id) << "a state of one is none of the other";
}

TEST(StateShape, ValueDimComesBeforeKeyDimInGatedDeltaNet) {
  EXPECT_EQ(gated_delta_net_state_shape(1, {2, 4, 8, 16, 4})[1], (Shape{4, 16, 8}));
}

TEST(StateShape, ReplicatedStatesAreNotDivided) {
  EXPECT_EQ(state_tp_size(8, true), 1);
  EXPECT_EQ(state_tp_size(8, false), 8);
  EXPECT_EQ(short_conv_state_shape(state_tp_size(8, true), 2050, 3), ple_short_conv_state_shape(2050, 3));
  EXPECT_EQ(ple_short_conv_state_shape(2050, 3)[0], (Shape{2, 2050}));
}

TEST(StateShape, SizesThatDoNotDivideAreRefusedByName) {
  expect_refused([] { mamba1_state_shape(3, 1000, 16, 4); }, {"intermediate_size", "1000", "tensor_parallel_size 3"});
  expect_refused([] { mamba2_state_shape(3, {513, 3, 8, 64, 128, 4}); }, {"num_heads", "8", "tensor_parallel_size 3"});
  expect_refused([] { gated_delta_net_state_shape(3, {3, 32, 3, 3, 4}); }, {"num_v_heads", "tensor_parallel_size 3"});
  expect_refused([] { linear_attention_state_shape(8, 4, 64); }, {"num_heads is 4", "tensor_parallel_size 8"});
}

TEST(StateShape, SizesOutOfRangeAreRefusedByName) {
  expect_refused([] { mamba1_state_shape(1, 0, 16, 4); }, {"intermediate_size is 0"});
  expect_refused([] { mamba1_state_shape(0, 64, 16, 4); }, {"tensor_parallel_size is 0"});
  expect_refused([] { mamba1_state_shape(1, 64, 16, 0); }, {"conv_kernel is 0"});
  expect_refused([] { short_conv_state_shape(1, 64, 3, -1); }, {"num_speculative_tokens is -1"});
  expect_refused([] { kda_state_shape(1, {int64_t{1} << 62, 4, {}, {}, 4}); }, {"num_heads"});
}

TEST(StateDType, FollowsTheConfigurationAndItsDefaults) {
  EngineConfig config;
  EXPECT_EQ(conv_state_dtype(config), DType::kFloat32);
  EXPECT_EQ(recurrent_state_dtype(config), DType::kFloat32);
  config.activation_dtype = kBf16;
  EXPECT_EQ(conv_state_dtype(config), kBf16);
  EXPECT_EQ(recurrent_state_dtype(config), DType::kFloat32);
  config.cache.mamba_cache_dtype = DType::kFloat16;
  EXPECT_EQ(conv_state_dtype(config), DType::kFloat16);
  EXPECT_EQ(linear_attention_state_dtype(config), DType::kFloat16);
  config.cache.mamba_ssm_cache_dtype = kBf16;
  EXPECT_EQ(recurrent_state_dtype(config), kBf16);
  EXPECT_EQ(linear_attention_state_dtype(config), kBf16);
  EXPECT_EQ(kda_recurrent_state_dtype(config), DType::kFloat32);
  config.cache.mamba_ssm_cache_dtype = DType::kInt8;
  EXPECT_EQ(recurrent_state_dtype(config), DType::kInt8);
  EXPECT_EQ(kda_recurrent_state_dtype(config), DType::kInt8);
  config.cache.mamba_ssm_cache_dtype = DType::kInt32;
  expect_refused([&] { recurrent_state_dtype(config); }, {"mamba_ssm_cache_dtype", "int32", "int16"});
  config.cache.mamba_cache_dtype = DType::kInt8;
  expect_refused([&] { conv_state_dtype(config); }, {"mamba_cache_dtype", "int8"});
}

TEST(StateDType, WholeNumbersHaveTheirScalesBehindAllOtherStates) {
  const std::vector<DType> dtypes = with_state_scales({kBf16, DType::kInt16, DType::kFloat32});
  EXPECT_EQ(dtypes, (std::vector<DType>{kBf16, DType::kInt16, DType::kFloat32, DType::kFloat32}));
  const std::vector<Shape> shapes = with_state_scales({Shape{3, 8}, Shape{2, 4, 16}, Shape{2, 1}}, dtypes);
  EXPECT_EQ(shapes, (std::vector<Shape>{Shape{3, 8}, Shape{2, 4, 16}, Shape{2, 1}, Shape{2, 4}}));
  EXPECT_EQ(with_state_scales({Shape{64}}, with_state_scales({DType::kInt8}), 4),
            (std::vector<Shape>{Shape{64}, Shape{4}}));
}

}  // namespace
}  // namespace coluber
