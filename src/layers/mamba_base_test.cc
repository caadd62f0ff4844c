// SPDX-License-Identifier: Apache-2.0
#include "coluber/mamba_base.h"

#include <gtest/gtest.h>

#include <functional>

#include "cache/state_shape.h"
#include "coluber/error.h"
#include "layers/cache_binding.h"
#include "tensor/device.h"

namespace coluber {
namespace {

class RecurrentLayer : public MambaBase {
 public:
  RecurrentLayer(std::string name, std::vector<Shape> shapes, std::vector<DType> dtypes)
      : MambaBase(std::move(name)), shapes_(std::move(shapes)), dtypes_(std::move(dtypes)) {}
  std::vector<Shape> get_state_shape() const override { return shapes_; }
  std::vector<DType> get_state_dtype() const override { return dtypes_; }
  MambaAttentionBackendEnum mamba_type() const override { return type; }
  std::vector<StateSplit> get_state_split(const std::vector<Shape>& whole) const override {
    return splits.empty() ? MambaBase::get_state_split(whole) : splits;
  }
  bool is_kv_cache_tp_replicated() const noexcept override { return replicated; }
  std::optional<int64_t> get_prefill_checkpoint_alignment() const override { return alignment; }

  MambaAttentionBackendEnum type = MambaAttentionBackendEnum::kMamba2;
  std::vector<StateSplit> splits;
  bool replicated = false;
  std::optional<int64_t> alignment;

 private:
  std::vector<Shape> shapes_;
  std::vector<DType> dtypes_;
};

class AttentionLayer : public AttentionLayerBase {
 public:
  using AttentionLayerBase::AttentionLayerBase;
  const AttentionBackend& get_attn_backend() const override { return get_full_attn_backend(); }
  KVCacheSpec get_kv_cache_spec(const EngineConfig& config) const override {
    FullAttentionSpec spec;
    spec.block_size = config.cache.block_size;
    spec.num_kv_heads = 1;
    spec.head_size = 2;
    return spec;
  }
  void bind_kv_cache(const TensorView& view) override { page = view; }
  TensorView page;
};

RecurrentLayer small_layer(std::string name) {
  return RecurrentLayer(std::move(name), {Shape{3, 5}, Shape{2, 3}}, {DType::kFloat16, DType::kFloat32});
}

EngineConfig config_with(std::initializer_list<AttentionLayerBase*> layers) {
  EngineConfig config;
  config.cache.mamba_block_size = 64;
  for (AttentionLayerBase* layer : layers) config.register_layer(*layer);
  return config;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

TEST(RegisterLayer, GivesIndicesAndRefusesATakenName) {
  RecurrentLayer a = small_layer("a");
  AttentionLayer b("b");
  RecurrentLayer again = small_layer("a");
  EXPECT_EQ(a.layer_index(), -1);
  EngineConfig config = config_with({&a, &b});
  EXPECT_EQ(a.layer_index(), 0);
  EXPECT_EQ(b.layer_index(), 1);
  EXPECT_NE(refusal([&] { config.register_layer(again); }).find("'a'"), std::string::npos);
}

TEST(KVCacheSpecOfLayer, NeedsAMambaBlockSize) {
  RecurrentLayer layer = small_layer("model.layers.7");
  EngineConfig config;
  const std::string message = refusal([&] { layer.get_kv_cache_spec(config); });
  EXPECT_NE(message.find("mamba_block_size"), std::string::npos) << message;
  EXPECT_NE(message.find("model.layers.7"), std::string::npos) << message;
}

TEST(KVCacheSpecOfLayer, CheckpointBlocksBelongToAlignModeOfLayersThatCanExport) {
  RecurrentLayer layer = small_layer("a");
  EngineConfig config = config_with({});
  const auto spec = [&] { return std::get<MambaSpec>(layer.get_kv_cache_spec(config)); };
  layer.alignment = 1;
  config.cache.mamba_cache_mode = MambaCacheMode::kAlign;
  EXPECT_EQ(spec().num_prefill_checkpoint_blocks, 1);
  EXPECT_EQ(spec().prefill_checkpoint_alignment, 1);
  for (const MambaCacheMode mode : {MambaCacheMode::kNone, MambaCacheMode::kAll}) {
    config.cache.mamba_cache_mode = mode;
    EXPECT_EQ(spec().num_prefill_checkpoint_blocks, 0);
    EXPECT_EQ(spec().prefill_checkpoint_alignment, std::nullopt);
  }
  config.cache.mamba_cache_mode = MambaCacheMode::kAlign;
  layer.alignment.reset();
  EXPECT_EQ(spec().num_prefill_checkpoint_blocks, 0);
}

TEST(CheckpointAlignment, SkipsAttentionLayersAndRefusesNonsense) {
  RecurrentLayer a = small_layer("a");
  RecurrentLayer c = small_layer("c");
  AttentionLayer b("b");
  EngineConfig config = config_with({&a, &b, &c});
  EXPECT_EQ(get_mamba_prefill_checkpoint_alignment(config), std::nullopt);
  a.alignment = 6;
  c.alignment = 4;
  EXPECT_EQ(get_mamba_prefill_checkpoint_alignment(config), 12);
  c.alignment = 0;
  EXPECT_NE(refusal([&] { get_mamba_prefill_checkpoint_alignment(config); }).find("'c'"), std::string::npos);
}

TEST(StateScales, LieBehindAllOtherStatesOneForEachStateOfWholeNumbers) {
  constexpr DType kF32 = DType::kFloat32, kI8 = DType::kInt8, kI16 = DType::kInt16;
  const Shape conv{3, 5}, state{2, 3, 4}, scales{2, 3}, vector{8};
  using Places = std::vector<int>;
  EXPECT_EQ(find_state_scales({conv, state}, {kF32, kF32}), (Places{-1, -1}));
  EXPECT_EQ(find_state_scales({conv, state, scales}, {kF32, kI16, kF32}), (Places{-1, 2, -1}));
  EXPECT_EQ(find_state_scales({state, conv, vector, scales, Shape{2}}, {kI8, kF32, kI8, kF32, kF32}),
            (Places{3, -1, 4, -1, -1}));
  EXPECT_EQ(find_state_scales({conv, state}, {kF32, kI16}), (Places{-1, -1})) << "a layer's own whole numbers";
  EXPECT_EQ(find_state_scales({state, Shape{2, 4}}, {kI8, kF32}), (Places{-1, -1})) << "another shape";
  EXPECT_EQ(find_state_scales({state, scales}, {kI8, DType::kFloat16}), (Places{-1, -1})) << "another type";
  EXPECT_EQ(find_state_scales({vector, Shape{3}}, {kI8, kF32}), (Places{-1, -1})) << "no rows of one length";
}

TEST(StateScales, AreSharedOutAsTheirStateIsAndRefusedWhereRowsWouldBeCut) {
  RecurrentLayer layer("layers.3.mixer", {Shape{8}, Shape{6, 4}, Shape{2}, Shape{6}},
                       {DType::kInt16, DType::kInt8, DType::kFloat32, DType::kFloat32});
  layer.splits = {StateSplit{0, {{8, 2}}}, StateSplit{0, {{2, 2, true}, {4, 4}}}};
  const std::vector<DeclaredState> states = layer.declared_states();
  ASSERT_EQ(states.size(), 4u);
  EXPECT_EQ(states[0].scales, 2);
  EXPECT_EQ(states[1].scales, 3);
  EXPECT_TRUE(states[2].is_scales && states[3].is_scales);
  EXPECT_EQ(states[3].name, states[1].name + ".scale");
  EXPECT_EQ(states[2].split, (StateSplit{0, {{2, 2}}})) << "rows of four";
  EXPECT_EQ(states[3].split, layer.splits[1]);
  layer.splits[1] = StateSplit{1, {{4, 2}}};
  const std::string message = refusal([&] { layer.declared_states(); });
  EXPECT_NE(message.find("layers.3.mixer"), std::string::npos) << message;
  EXPECT_NE(message.find("along its rows"), std::string::npos) << message;
}

TEST(DecodeContextParallel, IsRefusedByTheNamesOfLayersThatDoNotSupportIt) {
  RecurrentLayer a = small_layer("layers.0.mixer");
  AttentionLayer b("layers.1.attn");
  RecurrentLayer c = small_layer("layers.2.mixer");
  EngineConfig config = config_with({&a, &b, &c});
  EXPECT_NO_THROW(check_decode_context_parallel(config));
  config.parallel.decode_context_parallel_size = 2;
  const std::string message = refusal([&] { check_decode_context_parallel(config); });
  EXPECT_NE(message.find("layers.0.mixer, layers.2.mixer"), std::string::npos) << message;
  EXPECT_EQ(message.find("layers.1.attn"), std::string::npos) << message;
  EngineConfig attention_only = config_with({});
  AttentionLayer d("d");
  attention_only.register_layer(d);
  attention_only.parallel.decode_context_parallel_size = 2;
  EXPECT_NO_THROW(check_decode_context_parallel(attention_only));
  attention_only.parallel.decode_context_parallel_size = 0;
  EXPECT_THROW(check_decode_context_parallel(attention_only), Error);
}

TEST(ReplicatedLayer, KeepsItsWholeStateOnEveryRank) {
  RecurrentLayer layer("ple", {ple_short_conv_state_shape(10, 3)}, {DType::kFloat32});
  layer.replicated = true;
  EngineConfig config = config_with({});
  config.parallel.tensor_parallel_size = 4;
  const MambaSpec spec = std::get<MambaSpec>(layer.get_kv_cache_spec(config));
  EXPECT_TRUE(spec.tp_replicated);
  EXPECT_EQ(spec.shapes[0], (Shape{2, 10}));
}

TEST(Binding, ContractPackingNeedsOffsetsOfWholeElements) {
  RecurrentLayer layer = small_layer("a");  // 30 bytes of float16, then float32
  alignas(128) std::byte memory[512] = {};
  TensorView page;
  page.data = memory;
  page.dtype = DType::kInt8;
  page.shape = Shape{2, 1, 1, 64};
  page.strides = Shape{256, 64, 64, 1};
  EXPECT_NE(refusal([&] { layer.bind_kv_cache(page); }).find("element size 4"), std::string::npos);
  layer.bind_kv_cache(page, {0, 32});
  ASSERT_EQ(layer.kv_cache().size(), 2u);
  EXPECT_EQ(layer.kv_cache()[1].data, memory + 32);
  EXPECT_EQ(layer.kv_cache()[1].shape, (Shape{2, 2, 3}));
  EXPECT_EQ(layer.kv_cache()[1].strides, (Shape{64, 3, 1}));
  EXPECT_NE(refusal([&] { layer.bind_kv_cache(page, {0, 48}); }).find("too small"), std::string::npos);
  EXPECT_THROW(layer.bind_kv_cache(page, std::vector<int64_t>{0}), Error);
}

TEST(UnpackState, UndoesTheChannelBlocks) {
  constexpr int64_t kChannels = 35;  // a last block of 3
  constexpr int64_t kStates = 4;
  std::vector<float> contract(kChannels * kStates);
  for (size_t i = 0; i < contract.size(); ++i) contract[i] = static_cast<float>(i);
  std::vector<float> lanes;
  for (int64_t first = 0; first < kChannels; first += 16)
    for (int64_t n = 0; n < kStates; ++n)
      for (int64_t c = first; c < std::min<int64_t>(first + 16, kChannels); ++c)
        lanes.push_back(contract[static_cast<size_t>(c * kStates + n)]);
  std::vector<float> out(contract.size());
  unpack_state(TensorView::contiguous(lanes.data(), DType::kFloat32, Shape{kChannels, kStates}),
               StateLaneOrder::kChannelBlock16, out.data());
  EXPECT_EQ(out, contract);
  unpack_state(TensorView::contiguous(lanes.data(), DType::kFloat32, Shape{kChannels, kStates}),
               StateLaneOrder::kContract, out.data());
  EXPECT_EQ(out, lanes);
  std::vector<float> two_heads = lanes, expected = contract, unpacked(2 * lanes.size());
  two_heads.insert(two_heads.end(), lanes.rbegin(), lanes.rend());
  std::vector<float> reversed(lanes.rbegin(), lanes.rend());
  unpack_state(TensorView::contiguous(reversed.data(), DType::kFloat32, Shape{kChannels, kStates}),
               StateLaneOrder::kChannelBlock16, out.data());
  expected.insert(expected.end(), out.begin(), out.end());
  unpack_state(TensorView::contiguous(two_heads.data(), DType::kFloat32, Shape{2, kChannels, kStates}),
               StateLaneOrder::kHeadBlock16, unpacked.data());
  EXPECT_EQ(unpacked, expected);
}

TEST(CacheBinding, ASlotIsOneRangeOfAllLayersAtAlignedOffsets) {
  RecurrentLayer a = small_layer("a");
  AttentionLayer b("b");
  RecurrentLayer c = small_layer("c");
  EngineConfig config = config_with({&a, &b, &c});
  const CacheLayouts layouts = make_cache_layouts(config);
  ASSERT_EQ(layouts.state.layers.size(), 2u);
  EXPECT_EQ(layouts.state.layers[0].state_offsets, (std::vector<int64_t>{0, 128}));
  EXPECT_EQ(layouts.state.layers[1].offset, 256);
  EXPECT_EQ(layouts.state.slot_bytes, 512);
  EXPECT_EQ(layouts.attention.block_size, 16);
  EXPECT_EQ(layouts.attention.page_bytes, 2 * 16 * 2 * 4);

  PagePool states(cpu_device(), "states", layouts.state.slot_bytes, 5);
  PagePool pages(cpu_device(), "pages", layouts.attention.page_bytes, 9);
  bind_state_layers(config, layouts.state, states);
  bind_attention_layers(config, layouts.attention, pages);
  EXPECT_EQ(a.kv_cache()[0].data, states.base());
  EXPECT_EQ(c.kv_cache()[1].data, states.base() + 256 + 128);
  EXPECT_EQ(c.kv_cache()[1].shape, (Shape{5, 2, 3}));
  EXPECT_EQ(c.kv_cache()[1].strides[0] * 4, 512);
  EXPECT_EQ(b.page.shape, (Shape{9, 1, 1, 256}));
  EXPECT_THROW(bind_state_layers(config, layouts.state, pages), Error);
}

TEST(CacheBinding, ContractPackingKeepsThePageOfTheSpec) {
  RecurrentLayer a("a", {Shape{4, 3}, Shape{2, 2}}, {DType::kFloat16, DType::kFloat32});
  RecurrentLayer b("b", {Shape{1, 3}}, {DType::kFloat16});
  RecurrentLayer c("c", {Shape{1, 1}}, {DType::kFloat32});
  EngineConfig config = config_with({&a, &b, &c});
  const StateLayout layout = make_cache_layouts(config, StatePacking::kContract).state;
  EXPECT_EQ(layout.layers[0].state_offsets, (std::vector<int64_t>{0, 24}));
  EXPECT_EQ(layout.layers[0].page_bytes, 40);
  EXPECT_EQ(layout.layers[1].page_bytes, 6);
  PagePool pool(cpu_device(), "states", layout.slot_bytes, 3);
  EXPECT_NO_THROW(bind_state_layers(config, layout, pool));
}

TEST(CacheBinding, LayoutIdsDifferWhereAnythingThatMattersDiffers) {
  RecurrentLayer a = small_layer("a");
  EngineConfig config = config_with({&a});
  const uint64_t id = make_cache_layouts(config).state.id;
  EXPECT_EQ(make_cache_layouts(config).state.id, id);
  EXPECT_NE(make_cache_layouts(config, StatePacking::kContract).state.id, id);
  RecurrentLayer wider("a", {Shape{3, 5}, Shape{2, 4}}, {DType::kFloat16, DType::kFloat32});
  RecurrentLayer other_type("a", {Shape{3, 5}, Shape{2, 3}}, {DType::kBFloat16, DType::kFloat32});
  EXPECT_NE(make_cache_layouts(config_with({&wider})).state.id, id);
  EXPECT_NE(make_cache_layouts(config_with({&other_type})).state.id, id);
}

TEST(MetadataGroups, LayersThatReadTheSameShareABuilder) {
  RecurrentLayer a = small_layer("a");
  AttentionLayer b("b");
  RecurrentLayer c("c", {Shape{1, 1}}, {DType::kFloat32});
  RecurrentLayer d = small_layer("d");
  d.type = MambaAttentionBackendEnum::kMamba1;
  EngineConfig config = config_with({&a, &b, &c, &d});
  const std::vector<MetadataGroup> groups = make_metadata_groups(config, cpu_device());
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].backend, "Mamba2AttentionBackend");
  EXPECT_EQ(groups[0].layer_names, (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(groups[1].layer_indices, (std::vector<int>{1}));
  EXPECT_EQ(groups[2].backend, "Mamba1AttentionBackend");
  for (const MetadataGroup& group : groups) EXPECT_NE(group.builder, nullptr);
}

TEST(NullBlock, IsNeverWrittenByBindingOrPools) {
  RecurrentLayer a = small_layer("a");
  EngineConfig config = config_with({&a});
  const StateLayout layout = make_cache_layouts(config).state;
  PagePool pool(cpu_device(), "states", layout.slot_bytes, 4);
  bind_state_layers(config, layout, pool);
  EXPECT_EQ(pool.mapped_bytes(), 0);
  EXPECT_EQ(pool.allocate(), 1);
}

}  // namespace
}  // namespace coluber
