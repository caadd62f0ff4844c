// SPDX-License-Identifier: Apache-2.0
#include "cache/kv_cache_groups.h"

#include <gtest/gtest.h>

#include "cache/checkpoint_position.h"
#include "coluber/error.h"

namespace coluber {
namespace {

MambaSpec mamba_spec(int64_t channels = 256) {
  MambaSpec spec;
  spec.block_size = 16;
  spec.shapes = {Shape{3, channels}, Shape{4, 8, 16}};
  spec.dtypes = {DType::kFloat32, DType::kFloat32};
  return spec;
}

// An attention spec whose page has as many bytes as `mamba_spec()`.
FullAttentionSpec attention_spec() {
  FullAttentionSpec spec;
  spec.block_size = 16;
  spec.num_kv_heads = 1;
  spec.head_size = 4;
  spec.page_size_padded = mamba_spec().page_size_bytes();
  return spec;
}

std::vector<NamedSpec> layers_of(int64_t mambas, int64_t attentions) {
  std::vector<NamedSpec> layers;
  for (int64_t i = 0; i < mambas; ++i) layers.push_back({std::string("m").append(std::to_string(i)), mamba_spec()});
  for (int64_t i = 0; i < attentions; ++i)
    layers.push_back({std::string("a").append(std::to_string(i)), attention_spec()});
  return layers;
}

using Names = std::vector<std::string>;

TEST(KVCacheGroups, RarerKindSetsTheGroupSizeAndLayersGoRoundRobin) {
  const auto groups = group_kv_cache_specs(layers_of(6, 2));
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].layer_names, (Names{"m0", "m3"}));
  EXPECT_EQ(groups[1].layer_names, (Names{"m1", "m4"}));
  EXPECT_EQ(groups[2].layer_names, (Names{"m2", "m5"}));
  EXPECT_EQ(groups[3].layer_names, (Names{"a0", "a1"}));
}

TEST(KVCacheGroups, NearlyEqualCountsShareTheLargerSize) {
  // 7 < 1.5 * 5, so both kinds are one group each.
  EXPECT_EQ(group_kv_cache_specs(layers_of(7, 5)).size(), 2u);
  // 6 = 1.5 * 4 is not below it: groups of 4, of which the six layers need two.
  const auto groups = group_kv_cache_specs(layers_of(6, 4));
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].layer_names, (Names{"m0", "m2", "m4"}));
  EXPECT_EQ(groups[1].layer_names, (Names{"m1", "m3", "m5"}));
}

TEST(KVCacheGroups, AnUnevenLastGroupIsSmaller) {
  const auto groups = group_kv_cache_specs(layers_of(5, 2));
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].layer_names, (Names{"m0", "m3"}));
  EXPECT_EQ(groups[2].layer_names, (Names{"m2"}));
}

TEST(KVCacheGroups, ConfiguredSizeOverridesAndOneKindIsOneGroup) {
  EXPECT_EQ(group_kv_cache_specs(layers_of(6, 2), 3).size(), 3u);
  EXPECT_EQ(group_kv_cache_specs(layers_of(9, 0)).size(), 1u);
  EXPECT_TRUE(group_kv_cache_specs({}).empty());
  EXPECT_THROW(group_kv_cache_specs(layers_of(1, 0), 0), Error);
}

TEST(KVCacheGroups, PagesOfDifferentBytesAreRefusedByLayer) {
  std::vector<NamedSpec> layers = layers_of(2, 0);
  layers.push_back({"odd", mamba_spec(512)});
  try {
    group_kv_cache_specs(layers);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'odd'"), std::string::npos) << error.what();
  }
}

TEST(KVCacheGroups, MergingNeedsEqualSpecsAndUniformityLess) {
  MambaSpec other = mamba_spec();
  other.block_size = 32;
  const std::vector<KVCacheSpec> equal{mamba_spec(), mamba_spec()};
  const std::vector<KVCacheSpec> differing{mamba_spec(), other};
  EXPECT_EQ(merge_specs(equal), KVCacheSpec(mamba_spec()));
  EXPECT_THROW(merge_specs(differing), Error);
  EXPECT_THROW(merge_specs({}), Error);
  // The block size does not matter for a uniform group; each of these does.
  EXPECT_TRUE(is_uniform_mamba_group(differing));
  const auto not_uniform = [](auto change) {
    MambaSpec changed = mamba_spec();
    change(changed);
    const std::vector<KVCacheSpec> specs{mamba_spec(), changed};
    return !is_uniform_mamba_group(specs);
  };
  EXPECT_TRUE(not_uniform([](MambaSpec& spec) { spec.num_speculative_blocks = 1; }));
  EXPECT_TRUE(not_uniform([](MambaSpec& spec) { spec.num_prefill_checkpoint_blocks = 1; }));
  EXPECT_TRUE(not_uniform([](MambaSpec& spec) { spec.prefill_checkpoint_alignment = 16; }));
  EXPECT_TRUE(not_uniform([](MambaSpec& spec) { spec.page_size_padded = spec.page_size_bytes() + 1; }));
  EXPECT_TRUE(not_uniform([](MambaSpec& spec) { spec.tp_replicated = true; }));
  const std::vector<KVCacheSpec> mixed{mamba_spec(), attention_spec()};
  EXPECT_FALSE(is_uniform_mamba_group(mixed));
  EXPECT_FALSE(is_uniform_mamba_group({}));
}

UnifyPageSizeInput unify_input(MambaCacheMode mode, int64_t page, int64_t bytes_per_token) {
  UnifyPageSizeInput in;
  in.attention_bytes_per_token = bytes_per_token;
  in.mamba_page_bytes = page;
  in.chunk_size = 128;
  in.mamba_cache_mode = mode;
  return in;
}

TEST(UnifyPageSize, BlocksOfAllModeAreMultiplesOfChunkAndUserBlock) {
  const std::vector<std::pair<std::optional<int64_t>, int64_t>> expected = {
      {std::nullopt, 256}, {16, 256}, {32, 256}, {64, 256}, {96, 384}, {128, 256}, {176, 1408}, {256, 256}};
  for (const auto& [user, block] : expected) {
    UnifyPageSizeInput in = unify_input(MambaCacheMode::kAll, 103680, 512);
    in.user_mamba_block_size = user;
    EXPECT_EQ(unify_page_size(in).mamba_block_size, block) << user.value_or(0);
  }
}

TEST(UnifyPageSize, OtherModesTakeTheLeastBlockThatHoldsThePage) {
  EXPECT_EQ(unify_page_size(unify_input(MambaCacheMode::kAlign, 103680, 512)).attention_block_size, 208);
  EXPECT_EQ(unify_page_size(unify_input(MambaCacheMode::kAlign, 103680, 512)).page_size_bytes, 106496);
  const UnifiedPageSize half = unify_page_size(unify_input(MambaCacheMode::kNone, 1097728, 2048));
  EXPECT_EQ(half.attention_block_size, 544);
  EXPECT_EQ(half.mamba_page_size_padded, 1114112);
  EXPECT_EQ(half.mamba_block_size, std::nullopt);
  const UnifiedPageSize full = unify_page_size(unify_input(MambaCacheMode::kAlign, 2146304, 2048));
  EXPECT_EQ(full.attention_block_size, 1056);
  EXPECT_EQ(full.mamba_page_size_padded, 2162688);
}

TEST(UnifyPageSize, NoRecurrentLayerChangesNothingAndAnExactFitIsNotPadded) {
  EXPECT_EQ(unify_page_size(unify_input(MambaCacheMode::kAlign, 0, 512)).attention_block_size, 16);
  EXPECT_EQ(unify_page_size(unify_input(MambaCacheMode::kAlign, 512 * 32, 512)).mamba_page_size_padded, std::nullopt);
  EXPECT_THROW(unify_page_size(unify_input(MambaCacheMode::kAlign, 1, 0)), Error);
}

TEST(BlockSizes, ContextParallelismScalesAttentionOnly) {
  const std::vector<GroupBlockSize> groups{{false, 16, {}}, {true, 16, MambaCacheMode::kAlign}};
  BlockSizeOptions options;
  options.decode_context_parallel_size = 3;
  options.enable_prefix_caching = true;
  const BlockSizes sizes = resolve_block_sizes(groups, options);
  EXPECT_EQ(sizes.scheduler_block_size, 48);
  EXPECT_EQ(sizes.hash_block_size, 16);
}

TEST(BlockSizes, AMatchUnitThatDoesNotDivideIsRefused) {
  const std::vector<GroupBlockSize> groups{{false, 16, {}}, {true, 24, MambaCacheMode::kAlign}};
  BlockSizeOptions options;
  options.enable_prefix_caching = true;
  options.prefix_match_unit = 16;
  EXPECT_THROW(resolve_block_sizes(groups, options), Error);
  options.prefix_match_unit = 8;
  EXPECT_EQ(resolve_block_sizes(groups, options).hash_block_size, 8);
  options.enable_prefix_caching = false;
  options.has_kv_connector = true;
  EXPECT_EQ(resolve_block_sizes(groups, options).hash_block_size, 8);
}

TEST(ChunkSize, OwnNameThenChunkSizeThenKind) {
  EXPECT_EQ(resolve_mamba_chunk_size(128, 256, true), 128);
  EXPECT_EQ(resolve_mamba_chunk_size({}, 256, false), 256);
  EXPECT_EQ(resolve_mamba_chunk_size({}, 256, true), 256);
  EXPECT_EQ(resolve_mamba_chunk_size({}, {}, true), 64);
  EXPECT_EQ(resolve_mamba_chunk_size({}, {}, false), 2048);
}

TEST(CacheMode, FollowsPrefixCaching) {
  CacheConfig cache;
  cache.mamba_cache_mode = MambaCacheMode::kAlign;
  resolve_mamba_cache_mode(cache, {false, true, 1000});
  EXPECT_EQ(cache.mamba_cache_mode, MambaCacheMode::kNone);
  EXPECT_EQ(cache.mamba_block_size, 1000);

  cache = {};
  cache.enable_prefix_caching = true;
  cache.mamba_cache_mode = MambaCacheMode::kAll;
  resolve_mamba_cache_mode(cache, {false, true, 1000});
  EXPECT_EQ(cache.mamba_cache_mode, MambaCacheMode::kAlign);
  EXPECT_EQ(cache.mamba_block_size, 16);
  EXPECT_THROW(resolve_mamba_cache_mode(cache, {false, false, 1000}), Error);
}

TEST(ValidateBlockSize, OnlyAlignModeAsksAnything) {
  const BlockSizeLimits budget{32768, 0, false};
  EXPECT_THROW(validate_block_size(65536, MambaCacheMode::kAlign, budget), Error);
  EXPECT_NO_THROW(validate_block_size(544, MambaCacheMode::kAlign, budget));
  EXPECT_NO_THROW(validate_block_size(65536, MambaCacheMode::kNone, budget));
  EXPECT_THROW(validate_block_size(544, MambaCacheMode::kAlign, {32768, 32, false}), Error);
  EXPECT_THROW(validate_block_size(544, MambaCacheMode::kAlign, {32768, 0, true}), Error);
}

struct CheckpointCase {
  int64_t start, end, hash, block;
  std::optional<int64_t> alignment;
  bool drop;
  int64_t position;
  bool valid;
  int64_t offset, column;
};

TEST(PrefillCheckpoint, MatchesTheWorkedRows) {
  const std::vector<CheckpointCase> cases = {
      {0, 900, 256, 256, 1, false, 768, true, 768, 2},        {0, 100, 256, 256, 1, false, 0, false, 0, -1},
      {0, 900, 256, 256, 64, false, 768, true, 768, 2},       {0, 10000, 32, 512, 1, false, 9984, true, 9984, 18},
      {8192, 10000, 32, 512, 1, false, 9984, true, 1792, 18}, {300, 800, 100, 256, 1, false, 700, true, 400, 2},
      {0, 257, 256, 256, 1, false, 256, true, 256, 0},        {0, 512, 256, 256, 1, false, 256, true, 256, 0},
      {0, 513, 256, 256, 1, false, 512, true, 512, 1},        {0, 769, 256, 256, 1, true, 512, true, 512, 2},
      {512, 1100, 256, 256, 1, false, 1024, true, 512, 3},    {512, 769, 256, 256, 1, false, 768, true, 256, 2},
      {0, 900, 256, 256, {}, false, 768, false, 0, -1}};
  for (const CheckpointCase& c : cases) {
    const PrefillCheckpoint found = prefill_checkpoint(c.start, c.end, {c.hash, c.block, c.alignment, c.drop});
    EXPECT_EQ(found.position, c.position) << c.start << ".." << c.end;
    EXPECT_EQ(found.valid, c.valid) << c.start << ".." << c.end;
    EXPECT_EQ(found.offset, c.offset) << c.start << ".." << c.end;
    EXPECT_EQ(found.column, c.column) << c.start << ".." << c.end;
  }
}

TEST(PrefillCheckpoint, PositionIsTheLastWholeUnitBeforeTheLastToken) {
  for (const int64_t unit : {16, 64, 256}) {
    EXPECT_EQ(prefill_checkpoint_position(19 * unit + 7, unit, false), 19 * unit);
    EXPECT_EQ(prefill_checkpoint_position(19 * unit + 7, unit, true), 18 * unit);
    EXPECT_EQ(prefill_checkpoint_position(unit, unit, false), 0);
    EXPECT_EQ(prefill_checkpoint_position(1, unit, true), 0);
  }
}

TEST(PrefillCheckpoint, AValidOneIsAtLeastHalfABlockAway) {
  for (const int64_t block : {16, 256, 2096}) {
    for (int64_t hash = 1; hash <= block; ++hash) {
      if (block % hash != 0) continue;
      for (int64_t start = 0; start < 2 * block; start += hash) {
        for (int64_t end = start + 1; end < start + 4 * block; end += 1 + block / 13) {
          const PrefillCheckpoint found = prefill_checkpoint(start, end, {hash, block, 1, false});
          if (!found.valid) continue;
          ASSERT_GE(2 * found.offset, block) << block << " " << hash << " " << start << " " << end;
        }
      }
    }
  }
}

TEST(BlocksPerRequest, ModesKeepDifferentStates) {
  MambaSpec spec = mamba_spec();
  spec.num_speculative_blocks = 2;
  EXPECT_EQ(spec.max_num_blocks_per_req(256), 3);
  spec.mamba_cache_mode = MambaCacheMode::kAll;
  EXPECT_EQ(spec.max_num_blocks_per_req(256), 18);
  EXPECT_EQ(spec.block_table_cols(256), 18);
  spec.mamba_cache_mode = MambaCacheMode::kAlign;
  spec.num_prefill_checkpoint_blocks = 1;
  EXPECT_EQ(spec.max_num_blocks_per_req(256), 5);
  EXPECT_EQ(spec.block_table_cols(250), 18);
  EXPECT_EQ(spec.max_memory_usage_bytes(256), 5 * spec.page_size_bytes());
  spec.block_size = 0;
  EXPECT_THROW(spec.block_table_cols(256), Error);
}

}  // namespace
}  // namespace coluber
