// SPDX-License-Identifier: Apache-2.0
#include "attention/mamba_attention.h"

#include <gtest/gtest.h>

#include "attention/batch_test.h"
#include "attention/mamba1_attention.h"
#include "attention/mamba2_attention.h"
#include "attention/short_conv_attention.h"
#include "coluber/error.h"
#include "tensor/device.h"

namespace coluber {
namespace {

using test::Batch;
using test::Flags;
using test::Ints;

MambaSpec spec_of(MambaCacheMode mode = MambaCacheMode::kNone, int64_t spec_blocks = 0, int64_t block_size = 16) {
  MambaSpec spec;
  spec.block_size = block_size;
  spec.shapes = {Shape{3, 8}, Shape{2, 4, 4}};
  spec.dtypes = {DType::kFloat32, DType::kFloat32};
  spec.mamba_cache_mode = mode;
  spec.num_speculative_blocks = spec_blocks;
  return spec;
}

EngineConfig config_of(int64_t speculative_tokens = 0) {
  EngineConfig config;
  config.speculative.num_speculative_tokens = speculative_tokens;
  config.mamba_chunk_size = 8;
  return config;
}

BaseMambaAttentionMetadata build(Batch& batch, const MambaSpec& spec, const EngineConfig& config) {
  BaseMambaMetadataBuilder builder(spec, {"layer"}, config, "test");
  BaseMambaAttentionMetadata out;
  builder.build(batch.common(), out);
  return out;
}

// Two decodes, a resumed chunk and a fresh one.
Batch mixed_batch() {
  Batch batch;
  batch.query_lens = {1, 1, 5, 9};
  batch.seq_lens = {10, 7, 12, 9};
  batch.is_prefilling = {0, 0, 1, 1};
  batch.block_table = {{3, 30}, {4, 40}, {5, 50}, {6, 60}};
  return batch;
}

TEST(BaseMambaBuilder, SplitsDecodesFromPrefillsAndRebasesThePrefills) {
  Batch batch = mixed_batch();
  const BaseMambaAttentionMetadata out = build(batch, spec_of(), config_of());
  EXPECT_EQ(out.num_reqs, 4);
  EXPECT_EQ(out.num_decodes, 2);
  EXPECT_EQ(out.num_decode_tokens, 2);
  EXPECT_EQ(out.num_prefills, 2);
  EXPECT_EQ(out.num_prefill_tokens, 14);
  EXPECT_EQ(out.state_indices_tensor_d, (Ints{3, 4}));
  EXPECT_EQ(out.state_indices_d_cols, 1);
  EXPECT_EQ(out.state_indices_tensor_p, (Ints{5, 6}));
  EXPECT_EQ(out.has_initial_states_d, (Flags{1, 1}));
  EXPECT_EQ(out.has_initial_states_p, (Flags{1, 0}));
  EXPECT_EQ(out.query_start_loc_p, (Ints{0, 5, 14}));
  EXPECT_EQ(out.seq_lens, (Ints{10, 7, 12, 9}));
  EXPECT_EQ(out.conv.programs_per_sequence, (Ints{1, 2}));
  EXPECT_EQ(out.conv.sequence_of_program, (Ints{0, 1, 1}));
  EXPECT_EQ(out.conv.chunk_of_program, (Ints{0, 0, 1}));
  EXPECT_TRUE(out.query_start_loc_d.empty());
  EXPECT_TRUE(out.num_accepted_tokens.empty());
  EXPECT_TRUE(out.write_pos_d.empty());
}

TEST(BaseMambaBuilder, AResumedOneTokenTailIsADecodeAndAFirstChunkNeverIs) {
  Batch batch;
  batch.query_lens = {1, 1, 1};
  batch.seq_lens = {8, 8, 1};
  batch.is_prefilling = {0, 1, 1};
  batch.block_table = {{1}, {2}, {3}};
  const BaseMambaAttentionMetadata out = build(batch, spec_of(), config_of());
  EXPECT_EQ(out.num_decodes, 2);
  EXPECT_EQ(out.num_prefills, 1);
  EXPECT_EQ(out.has_initial_states_p, (Flags{0}));
  EXPECT_EQ(out.state_indices_tensor_p, (Ints{3}));
}

TEST(BaseMambaBuilder, WithoutFlagsAFreshRowIsAPrefillAndAResumedTokenADecode) {
  Batch batch;
  batch.query_lens = {1, 1};
  batch.seq_lens = {2, 1};
  batch.block_table = {{1}, {2}};
  const BaseMambaAttentionMetadata out = build(batch, spec_of(), config_of());
  EXPECT_EQ(out.num_decodes, 1);
  EXPECT_EQ(out.num_prefills, 1);
}

TEST(BaseMambaBuilder, ADecodeWithoutAStateIsToldToStartFromZeros) {
  Batch batch;
  batch.query_lens = {1, 1};
  batch.seq_lens = {2, 1};
  batch.is_prefilling = {0, 0};
  batch.block_table = {{1}, {2}};
  const BaseMambaAttentionMetadata out = build(batch, spec_of(), config_of());
  EXPECT_EQ(out.num_decodes, 2);
  EXPECT_EQ(out.has_initial_states_d, (Flags{1, 0}));
}

TEST(BaseMambaBuilder, APaddedPromptTailOfDraftLengthIsADecode) {
  Batch batch;
  batch.query_lens = {3, 3};
  batch.seq_lens = {20, 20};
  batch.is_prefilling = {0, 1};
  batch.num_accepted_tokens = {2, 1};
  batch.num_decode_draft_tokens = {2, 2};
  batch.block_table = {{1, 2, 3}, {4, 5, 6}};
  EXPECT_EQ(build(batch, spec_of(MambaCacheMode::kNone, 2), config_of(2)).num_decodes, 2);
  batch.num_decode_draft_tokens = {2, -1};
  EXPECT_EQ(build(batch, spec_of(MambaCacheMode::kNone, 2), config_of(2)).num_decodes, 1);
}

TEST(BaseMambaBuilder, PaddedRowsAndTokensAreCountedWithTheirClass) {
  Batch batch;
  batch.query_lens = {1, 1, 0, 0};
  batch.seq_lens = {8, 5, 0, 0};
  batch.is_prefilling = {0, 0, 0, 0};
  batch.block_table = {{1}, {2}, {0}, {0}};
  batch.padding_tokens = 2;
  BaseMambaAttentionMetadata out = build(batch, spec_of(), config_of());
  EXPECT_EQ(out.num_decodes, 4);
  EXPECT_EQ(out.num_decode_tokens, 4);
  EXPECT_EQ(out.state_indices_tensor_d, (Ints{1, 2, kNullBlockId, kNullBlockId}));
  EXPECT_EQ(out.has_initial_states_d, (Flags{1, 1, 0, 0}));
  EXPECT_EQ(out.query_start_loc_p, (Ints{0}));

  batch = mixed_batch();
  batch.query_lens.push_back(0);
  batch.seq_lens.push_back(0);
  batch.is_prefilling.push_back(0);
  batch.block_table.push_back({0, 0});
  batch.padding_tokens = 6;
  out = build(batch, spec_of(), config_of());
  EXPECT_EQ(out.num_prefills, 3);
  EXPECT_EQ(out.num_prefill_tokens, 20);
  EXPECT_EQ(out.query_start_loc_p, (Ints{0, 5, 14, 14}));
  EXPECT_EQ(out.has_initial_states_p, (Flags{1, 0, 0}));
  EXPECT_EQ(out.conv.programs_per_sequence, (Ints{1, 2, 0}));
}

TEST(BaseMambaBuilder, DraftRowsKeepTheirSlotsAndAcceptedCounts) {
  Batch batch;
  batch.query_lens = {3, 2, 6};
  batch.seq_lens = {10, 12, 6};
  batch.is_prefilling = {0, 0, 1};
  batch.num_accepted_tokens = {2, 1, 1};
  batch.block_table = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
  const MambaSpec spec = spec_of(MambaCacheMode::kNone, 2);
  BaseMambaAttentionMetadata out = build(batch, spec, config_of(2));
  EXPECT_EQ(out.num_decodes, 2);
  EXPECT_EQ(out.state_indices_d_cols, 3);
  EXPECT_EQ(out.state_indices_tensor_d, (Ints{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(out.query_start_loc_d, (Ints{0, 3, 5}));
  EXPECT_EQ(out.num_accepted_tokens, (Ints{2, 1}));
  EXPECT_EQ(out.state_indices_tensor_p, (Ints{7}));
  EXPECT_EQ(out.query_start_loc_p, (Ints{0, 6}));

  // Without counts the threshold stays 1, and each token of a decode counts as accepted.
  batch.num_accepted_tokens.clear();
  batch.query_lens = {1, 1, 6};
  out = build(batch, spec, config_of(2));
  EXPECT_EQ(out.num_decodes, 2);
  EXPECT_EQ(out.num_accepted_tokens, (Ints{1, 1}));
  batch.query_lens = {3, 2, 6};
  EXPECT_EQ(build(batch, spec, config_of(2)).num_decodes, 0);
}

TEST(BaseMambaBuilder, AlignModeReadsTheColumnOfTheRunningState) {
  Batch batch;
  batch.query_lens = {1, 20};
  batch.seq_lens = {33, 20};
  batch.is_prefilling = {0, 1};
  batch.block_table = {{1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}};
  const BaseMambaAttentionMetadata out = build(batch, spec_of(MambaCacheMode::kAlign, 1), config_of(1));
  EXPECT_EQ(out.state_indices_tensor_d, (Ints{3, 4}));
  EXPECT_EQ(out.state_indices_tensor_p, (Ints{7}));
}

TEST(BaseMambaBuilder, AllModeKeepsWholeRowsAndTheColumnsToReadAndWrite) {
  Batch batch;
  batch.query_lens = {1, 40};
  batch.seq_lens = {33, 60};
  batch.is_prefilling = {0, 1};
  batch.block_table = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const BaseMambaAttentionMetadata out = build(batch, spec_of(MambaCacheMode::kAll), config_of());
  EXPECT_EQ(out.state_indices_tensor_d, (Ints{1, 2, 3, 4}));
  EXPECT_EQ(out.state_indices_tensor_p, (Ints{5, 6, 7, 8}));
  EXPECT_EQ(out.block_idx_last_computed_token, (Ints{1, 1}));
  EXPECT_EQ(out.block_idx_last_scheduled_token, (Ints{2, 3}));
  EXPECT_EQ(out.block_idx_first_scheduled_token_p, (Ints{1}));
  EXPECT_EQ(out.num_computed_tokens_p, (Ints{20}));
}

TEST(BaseMambaBuilder, ReplayPositionsAreThoseOfTheDecodes) {
  Batch batch;
  batch.query_lens = {1, 1, 4};
  batch.seq_lens = {106, 116, 4};
  batch.is_prefilling = {0, 0, 1};
  batch.replayssm_decode_base = {100, 100, 0};
  batch.block_table = {{1}, {2}, {3}};
  EngineConfig config = config_of();
  config.cache.use_replayssm = true;
  const BaseMambaAttentionMetadata out = build(batch, spec_of(), config);
  EXPECT_EQ(out.write_pos_d, (Ints{5, 15}));
  EXPECT_EQ(out.is_flush_d, (Flags{0, 1}));
  EXPECT_EQ(out.ring_counts_p, (Ints{0}));
  Batch resumed = batch;
  resumed.seq_lens = {106, 116, 24};
  resumed.replayssm_decode_base = {100, 100, 13};
  EXPECT_EQ(build(resumed, spec_of(), config).ring_counts_p, (Ints{7})) << "inputs since its state was written";
  batch.replayssm_decode_base.clear();
  EXPECT_THROW(build(batch, spec_of(), config), Error);
  config.speculative.num_speculative_tokens = 2;
  EXPECT_THROW(build(batch, spec_of(), config), Error);
}

TEST(BaseMambaBuilder, ATableTooNarrowIsABrokenInvariant) {
  Batch batch = mixed_batch();
  EXPECT_THROW(build(batch, spec_of(MambaCacheMode::kNone, 2), config_of(2)), Error);
  batch.block_table.pop_back();
  EXPECT_THROW(build(batch, spec_of(), config_of()), Error);
}

TEST(BaseMambaBuilder, AttentionSpecIsRefusedByLayerName) {
  try {
    Mamba1AttentionMetadataBuilder builder(FullAttentionSpec{}, {"model.layers.3"}, config_of(), cpu_device());
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.layers.3"), std::string::npos) << error.what();
  }
}

struct ReplayCase {
  int32_t seq, query, base;
  int64_t buffer;
  MambaCacheMode mode;
  int32_t write_pos;
  uint8_t flush;
};

TEST(ReplayPositions, MatchTheWorkedRows) {
  constexpr MambaCacheMode kNone = MambaCacheMode::kNone;
  constexpr MambaCacheMode kAlign = MambaCacheMode::kAlign;
  const std::vector<ReplayCase> cases = {
      {106, 1, 100, 16, kNone, 5, 0},   {106, 1, 105, 16, kNone, 0, 0},   {116, 1, 100, 16, kNone, 15, 1},
      {121, 1, 105, 16, kNone, 15, 1},  {104, 1, 100, 16, kNone, 3, 0},   {106, 1, 105, 16, kNone, 0, 0},
      {216, 1, 200, 16, kNone, 15, 1},  {112, 1, 105, 4, kNone, 2, 0},    {100, 1, 100, 16, kNone, 0, 1},
      {118, 1, 100, 16, kAlign, 5, 0},  {112, 1, 100, 16, kAlign, 11, 1}, {113, 1, 100, 16, kAlign, 0, 0},
      {128, 1, 100, 16, kAlign, 15, 1}, {128, 1, 100, 6, kAlign, 3, 1},   {105, 1, 100, 16, kAlign, 4, 0},
      {0, 0, 0, 16, kAlign, 0, 0},      {0, 0, 0, 1, kNone, 0, 0}};
  for (const ReplayCase& c : cases) {
    Ints write_pos;
    Flags flush;
    compute_replay_positions(Ints{c.seq}, Ints{c.query}, Ints{c.base}, {c.buffer, c.mode, 16}, write_pos, flush);
    EXPECT_EQ(write_pos[0], c.write_pos) << c.seq << " base " << c.base;
    EXPECT_EQ(flush[0], c.flush) << c.seq << " base " << c.base;
  }
}

TEST(BlockTable, AlignModeGathersFromTheRunningColumnAndOthersNothing) {
  for (const int32_t bs : {16, 128}) {
    for (const int64_t spec : {0, 1, 15}) {
      const Ints seq_lens{0, 1, bs - 1, bs, bs + 1, 2 * bs - 1, 2 * bs, 2 * bs + 1, 8 * bs};
      const int64_t cols = 8 + spec;
      Ints data;
      for (size_t i = 0; i < seq_lens.size() * static_cast<size_t>(cols); ++i)
        data.push_back(static_cast<int32_t>(1000 + i));
      const BlockTableView table{data.data(), static_cast<int64_t>(seq_lens.size()), cols, cols};
      Ints storage;
      const BlockTableView same =
          mamba_get_block_table_tensor(table, seq_lens, bs, spec, MambaCacheMode::kAll, storage);
      EXPECT_EQ(same.data, table.data);
      const BlockTableView found =
          mamba_get_block_table_tensor(table, seq_lens, bs, spec, MambaCacheMode::kAlign, storage);
      ASSERT_EQ(found.cols, 1 + spec);
      for (int64_t row = 0; row < found.rows; ++row) {
        const int64_t len = seq_lens[static_cast<size_t>(row)];
        const int64_t start = len == 0 ? 0 : (len - 1) / bs;
        for (int64_t col = 0; col <= spec; ++col) EXPECT_EQ(found.at(row, col), table.at(row, start + col));
      }
    }
  }
}

TEST(UpdateBlockTable, ChangesOnlyIndicesAndFillsTheReceiversBuffers) {
  Batch batch = mixed_batch();
  const EngineConfig config = config_of();
  Mamba1AttentionMetadataBuilder first(spec_of(), {"a"}, config, cpu_device());
  Mamba1AttentionMetadataBuilder second(spec_of(), {"b"}, config, cpu_device());
  const Mamba1AttentionMetadata& built = first.build(0, batch.common());
  const Ints other{11, 12, 13, 14};
  const Mamba1AttentionMetadata& updated = second.update_block_table(built, {other.data(), 4, 1, 1});
  EXPECT_EQ(updated.state_indices_tensor_d, (Ints{11, 12}));
  EXPECT_EQ(updated.state_indices_tensor_p, (Ints{13, 14}));
  EXPECT_EQ(updated.query_start_loc_p, built.query_start_loc_p);
  EXPECT_EQ(built.state_indices_tensor_d, (Ints{3, 4}));
  EXPECT_NE(&updated, &built);
  EXPECT_THROW(second.update_block_table(built, {other.data(), 3, 1, 1}), Error);
}

TEST(BaseMambaBuilder, StatesInsidePrefillsAreCountedByPrefill) {
  Batch batch;
  batch.query_lens = {1, 40, 8, 100};
  batch.seq_lens = {11, 40, 24, 100};
  batch.is_prefilling = {0, 1, 1, 1};
  batch.block_table = {{1}, {2}, {3}, {4}};
  BaseMambaMetadataBuilder builder(spec_of(MambaCacheMode::kNone, 0, 4096), {"layer"}, config_of(), "test");
  BaseMambaAttentionMetadata out;
  builder.build(batch.common(), out);
  EXPECT_TRUE(out.exports.starts.empty());
  const std::vector<StateExport> wanted = {{1, 16, 7}, {1, 32, 8}, {3, 96, 9}};
  CommonAttentionMetadata common = batch.common();
  common.state_exports = wanted;
  builder.build(common, out);
  EXPECT_EQ(out.exports.starts, (Ints{0, 2, 2, 3}));
  EXPECT_EQ(out.exports.offsets, (Ints{16, 32, 96}));
  EXPECT_EQ(out.exports.blocks, (Ints{7, 8, 9}));
  for (const StateExport& wrong : {StateExport{0, 1, 7}, StateExport{1, 40, 7}, StateExport{2, 0, 7}}) {
    common.state_exports = std::span(&wrong, 1);
    EXPECT_THROW(builder.build(common, out), Error);
  }
}

TEST(ChunkMetadata, StaysOnTheAbsoluteGridAndEndsAtCheckpoints) {
  ChunkMetadata out;
  compute_chunk_metadata(256, Ints{0, 300}, Ints{700, 300}, {}, out);
  EXPECT_EQ(out.cu_chunk_seqlen, (Ints{0, 256, 512, 700, 912, 1000}));
  EXPECT_EQ(out.seq_idx, (Ints{0, 0, 0, 1, 1}));
  EXPECT_EQ(out.last_chunk_indices, (Ints{2, 4}));
  EXPECT_EQ(out.checkpoint_chunk_indices, (Ints{-1, -1}));
  compute_chunk_metadata(256, Ints{0}, Ints{700}, Ints{100}, out);
  EXPECT_EQ(out.cu_chunk_seqlen, (Ints{0, 100, 256, 512, 700}));
  compute_chunk_metadata(256, Ints{300}, Ints{500}, Ints{212}, out);
  EXPECT_EQ(out.cu_chunk_seqlen, (Ints{0, 212, 468, 500}));
  EXPECT_EQ(out.checkpoint_chunk_indices, (Ints{0}));
}

TEST(ChunkMetadata, ARowOfNoTokensHasNoChunk) {
  ChunkMetadata out;
  compute_chunk_metadata(4, Ints{0, 0, 2}, Ints{3, 0, 3}, {}, out);
  EXPECT_EQ(out.cu_chunk_seqlen, (Ints{0, 3, 5, 6}));
  EXPECT_EQ(out.seq_idx, (Ints{0, 2, 2}));
  EXPECT_EQ(out.last_chunk_indices, (Ints{0, -1, 2}));
  EXPECT_THROW(compute_chunk_metadata(4, Ints{0}, Ints{3}, Ints{3}, out), Error);
}

TEST(Mamba2Builder, ExportsCheckpointsInAlignModeOnly) {
  Batch batch;
  batch.query_lens = {900, 100};
  batch.seq_lens = {900, 100};
  batch.is_prefilling = {1, 1};
  batch.block_table = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  EngineConfig config = config_of();
  config.mamba_chunk_size = 256;
  MambaSpec spec = spec_of(MambaCacheMode::kAlign, 0, 256);
  spec.num_prefill_checkpoint_blocks = 1;
  spec.prefill_checkpoint_alignment = 1;
  Mamba2AttentionMetadataBuilder builder(spec, {"layer"}, config, cpu_device());
  const Mamba2AttentionMetadata& out = builder.build(0, batch.common());
  EXPECT_TRUE(out.checkpoint.any);
  EXPECT_EQ(out.checkpoint.checkpoint_offsets, (Ints{768, 0}));
  EXPECT_EQ(out.checkpoint.state_indices, (Ints{3, kNullBlockId}));
  EXPECT_EQ(out.checkpoint.block_cols, (std::vector<int64_t>{2, -1}));
  EXPECT_EQ(out.checkpoint.request_rows, (std::vector<int64_t>{0, 1}));
  ASSERT_GE(out.checkpoint_chunk_indices[0], 0);
  EXPECT_EQ(out.cu_chunk_seqlen_p[static_cast<size_t>(out.checkpoint_chunk_indices[0]) + 1], 768);
  EXPECT_EQ(out.checkpoint_chunk_indices[1], -1);
  const Ints other{11, 12, 13, 14, 15, 16, 17, 18};
  const Mamba2AttentionMetadata& updated = builder.update_block_table(out, {other.data(), 2, 4, 4});
  EXPECT_EQ(updated.checkpoint.state_indices, (Ints{13, kNullBlockId}));
  EXPECT_EQ(updated.state_indices_tensor_p, (Ints{14, 15}));

  spec.mamba_cache_mode = MambaCacheMode::kAll;
  Mamba2AttentionMetadataBuilder all(spec, {"layer"}, config, cpu_device());
  EXPECT_FALSE(all.build(0, batch.common()).checkpoint.any);
}

TEST(Mamba2Builder, ChunksAreThoseOfThePrefillsAlone) {
  Batch batch = mixed_batch();
  Mamba2AttentionMetadataBuilder builder(spec_of(), {"layer"}, config_of(), cpu_device());
  const Mamba2AttentionMetadata& out = builder.build(0, batch.common());
  EXPECT_TRUE(out.prep_initial_states);
  EXPECT_EQ(out.chunk_size, 8);
  EXPECT_EQ(out.cu_chunk_seqlen_p, (Ints{0, 1, 5, 13, 14}));  // 7 tokens were computed: one token to the grid
  EXPECT_EQ(out.seq_idx_p, (Ints{0, 0, 1, 1}));
  EXPECT_EQ(out.last_chunk_indices_p, (Ints{1, 3}));
  batch.seq_lens = {10, 7, 5, 9};
  EXPECT_FALSE(builder.build(0, batch.common()).prep_initial_states);
}

TEST(Builders, KeepTheirBuffersFromStepToStep) {
  Batch batch = mixed_batch();
  Mamba2AttentionMetadataBuilder builder(spec_of(), {"layer"}, config_of(), cpu_device());
  const int32_t* indices = builder.build(0, batch.common()).state_indices_tensor_p.data();
  const int32_t* chunks = builder.build(0, batch.common()).cu_chunk_seqlen_p.data();
  Batch smaller;
  smaller.query_lens = {4};
  smaller.seq_lens = {4};
  smaller.is_prefilling = {1};
  smaller.block_table = {{9}};
  builder.build(0, smaller.common());
  const Mamba2AttentionMetadata& again = builder.build(0, batch.common());
  EXPECT_EQ(again.state_indices_tensor_p.data(), indices);
  EXPECT_EQ(again.cu_chunk_seqlen_p.data(), chunks);
}

TEST(ShortConvBuilder, BuildsTheSharedMetadata) {
  Batch batch = mixed_batch();
  ShortConvAttentionMetadataBuilder builder(spec_of(), {"layer"}, config_of(), cpu_device());
  const ShortConvAttentionMetadata& out = builder.build(0, batch.common());
  EXPECT_EQ(out.num_decodes, 2);
  EXPECT_EQ(out.state_indices_tensor_p, (Ints{5, 6}));
}

}  // namespace
}  // namespace coluber
