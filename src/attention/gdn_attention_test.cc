// SPDX-License-Identifier: Apache-2.0
#include "attention/gdn_attention.h"

#include <gtest/gtest.h>

#include "attention/batch_test.h"
#include "coluber/error.h"
#include "tensor/device.h"

namespace coluber {
namespace {

using test::Batch;
using test::Flags;
using test::Ints;

MambaSpec spec_of(int64_t spec_blocks, MambaCacheMode mode = MambaCacheMode::kNone) {
  MambaSpec spec;
  spec.block_size = 16;
  spec.mamba_type = MambaAttentionBackendEnum::kGdnAttn;
  spec.mamba_cache_mode = mode;
  spec.num_speculative_blocks = spec_blocks;
  return spec;
}

GDNAttentionMetadata build(Batch& batch, int64_t drafts, MambaCacheMode mode = MambaCacheMode::kNone) {
  EngineConfig config;
  config.speculative.num_speculative_tokens = drafts;
  GDNAttentionMetadataBuilder builder(spec_of(drafts, mode), {"layer"}, config, cpu_device());
  return builder.build(0, batch.common());
}

TEST(GdnBuilder, WithoutDraftsFirstChunksArePrefillsAndResumedTokensDecodes) {
  Batch batch;
  batch.query_lens = {1, 1, 70, 1};
  batch.seq_lens = {9, 8, 100, 1};
  batch.is_prefilling = {0, 1, 1, 1};
  batch.block_table = {{1}, {2}, {3}, {4}};
  const GDNAttentionMetadata out = build(batch, 0);
  EXPECT_EQ(out.num_decodes, 2);
  EXPECT_EQ(out.num_decode_tokens, 2);
  EXPECT_EQ(out.num_prefills, 2);
  EXPECT_EQ(out.num_prefill_tokens, 71);
  EXPECT_EQ(out.num_spec_decodes, 0);
  EXPECT_TRUE(out.spec_sequence_masks.empty());
  EXPECT_TRUE(out.spec_query_start_loc.empty());
  EXPECT_EQ(out.non_spec_query_start_loc, (Ints{0, 1, 2, 72, 73}));
  EXPECT_EQ(out.non_spec_state_indices_tensor, (Ints{1, 2, 3, 4}));
  EXPECT_EQ(out.has_initial_state, (Flags{1, 1, 1, 0}));
  EXPECT_EQ(out.prefill_query_start_loc, (Ints{0, 70, 71}));
  EXPECT_EQ(out.prefill_state_indices, (Ints{3, 4}));
  EXPECT_EQ(out.prefill_has_initial_state, (Flags{1, 0}));
  EXPECT_EQ(out.chunk_indices, (Ints{0, 0, 0, 1, 1, 0}));
  EXPECT_EQ(out.chunk_offsets, (Ints{0, 2, 3}));
}

TEST(GdnBuilder, TrailingRowsOfNoTokensAreNoPrefills) {
  Batch batch;
  batch.query_lens = {1, 5, 0, 0};
  batch.seq_lens = {9, 5, 0, 0};
  batch.is_prefilling = {0, 1, 0, 0};
  batch.block_table = {{1}, {2}, {0}, {0}};
  batch.padding_tokens = 2;
  const GDNAttentionMetadata out = build(batch, 0);
  EXPECT_EQ(out.num_decodes, 1);
  EXPECT_EQ(out.num_prefills, 1);
  EXPECT_EQ(out.num_prefill_tokens, 7);
  EXPECT_EQ(out.num_actual_tokens, 8);
  EXPECT_EQ(out.non_spec_query_start_loc, (Ints{0, 1, 6, 6, 6}));
  EXPECT_EQ(out.prefill_state_indices, (Ints{2}));
  EXPECT_EQ(out.prefill_query_start_loc, (Ints{0, 5}));
}

TEST(GdnBuilder, DecodesAloneHaveNoPrefillViews) {
  Batch batch;
  batch.query_lens = {1, 1, 0};
  batch.seq_lens = {9, 5, 0};
  batch.is_prefilling = {0, 0, 0};
  batch.block_table = {{1}, {2}, {0}};
  const GDNAttentionMetadata out = build(batch, 0);
  EXPECT_EQ(out.num_decodes, 3);
  EXPECT_EQ(out.num_prefills, 0);
  EXPECT_TRUE(out.has_initial_state.empty());
  EXPECT_EQ(out.prefill_query_start_loc, (Ints{0}));
  EXPECT_TRUE(out.chunk_indices.empty());
}

TEST(GdnBuilder, DraftRowsAloneTakeEveryTokenOfThePaddedBatch) {
  Batch batch;
  batch.query_lens = {3, 3, 0};
  batch.seq_lens = {10, 20, 0};
  batch.is_prefilling = {0, 0, 0};
  batch.num_decode_draft_tokens = {2, 2, -1};
  batch.num_accepted_tokens = {2, 3, 1};
  batch.block_table = {{1, 2, 3}, {4, 5, 6}, {0, 0, 0}};
  batch.padding_tokens = 3;
  const GDNAttentionMetadata out = build(batch, 2);
  EXPECT_EQ(out.num_spec_decodes, 2);
  EXPECT_EQ(out.num_spec_decode_tokens, 6);
  EXPECT_EQ(out.num_decodes, 0);
  EXPECT_EQ(out.num_prefills, 0);
  EXPECT_EQ(out.spec_sequence_masks, (Flags{1, 1, 0}));
  EXPECT_EQ(out.spec_query_start_loc, (Ints{0, 3, 6}));
  EXPECT_EQ(out.spec_state_indices_tensor, (Ints{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(out.spec_state_indices_cols, 3);
  EXPECT_EQ(out.spec_token_indx, (Ints{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(out.non_spec_token_indx.empty());
  EXPECT_EQ(out.num_accepted_tokens, (Ints{2, 3}));
}

TEST(GdnBuilder, RowsOfNoDraftsStillTakeTheDraftPath) {
  Batch batch;
  batch.query_lens = {1};
  batch.seq_lens = {10};
  batch.is_prefilling = {0};
  batch.num_decode_draft_tokens = {0};
  batch.num_accepted_tokens = {3};
  batch.block_table = {{1, 2, 3}};
  const GDNAttentionMetadata out = build(batch, 2);
  EXPECT_EQ(out.num_spec_decodes, 1);
  EXPECT_EQ(out.num_accepted_tokens, (Ints{3}));
  EXPECT_EQ(out.spec_token_indx, (Ints{0}));
}

TEST(GdnBuilder, DecodesBesideDraftRowsCountAsPrefillsAndTokensArePermuted) {
  Batch batch;
  batch.query_lens = {3, 1, 2, 4, 0};
  batch.seq_lens = {10, 7, 9, 4, 0};
  batch.is_prefilling = {0, 0, 0, 1, 0};
  batch.num_decode_draft_tokens = {2, -1, 1, -1, -1};
  batch.num_accepted_tokens = {2, 1, 1, 1, 1};
  batch.block_table = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {10, 11, 12}, {0, 0, 0}};
  const GDNAttentionMetadata out = build(batch, 2);
  EXPECT_EQ(out.num_spec_decodes, 2);
  EXPECT_EQ(out.num_spec_decode_tokens, 5);
  EXPECT_EQ(out.num_decodes, 0);
  EXPECT_EQ(out.num_prefills, 2);
  EXPECT_EQ(out.num_prefill_tokens, 5);
  EXPECT_EQ(out.spec_sequence_masks, (Flags{1, 0, 1, 0, 0}));
  EXPECT_EQ(out.spec_query_start_loc, (Ints{0, 3, 5}));
  EXPECT_EQ(out.spec_state_indices_tensor, (Ints{1, 2, 3, 7, 8, 9}));
  EXPECT_EQ(out.spec_token_indx, (Ints{0, 1, 2, 4, 5}));
  EXPECT_EQ(out.num_accepted_tokens, (Ints{2, 1}));
  EXPECT_EQ(out.non_spec_query_start_loc, (Ints{0, 1, 5, 5}));
  EXPECT_EQ(out.non_spec_state_indices_tensor, (Ints{4, 10, 0}));
  EXPECT_EQ(out.non_spec_token_indx, (Ints{3, 6, 7, 8, 9}));
  EXPECT_EQ(out.has_initial_state, (Flags{1, 0, 0}));
  EXPECT_EQ(out.prefill_state_indices, (Ints{4, 10}));
  EXPECT_EQ(out.prefill_query_start_loc, (Ints{0, 1, 5}));
  EXPECT_EQ(out.prefill_has_initial_state, (Flags{1, 0}));
  EXPECT_EQ(out.chunk_offsets, (Ints{0, 1, 2}));
}

TEST(GdnBuilder, ADraftCountThatDoesNotFitTheRowIsNoDraftRow) {
  Batch batch;
  batch.query_lens = {3, 4};
  batch.seq_lens = {10, 20};
  batch.num_decode_draft_tokens = {1, 3};  // 1 + 1 tokens expected; more drafts than slots
  batch.block_table = {{1, 2, 3}, {4, 5, 6}};
  const GDNAttentionMetadata out = build(batch, 2);
  EXPECT_EQ(out.num_spec_decodes, 0);
  EXPECT_EQ(out.num_prefills, 2);
}

TEST(GdnBuilder, AlignModeReadsTheRunningColumn) {
  Batch batch;
  batch.query_lens = {2, 3};
  batch.seq_lens = {34, 18};
  batch.num_decode_draft_tokens = {1, -1};
  batch.num_accepted_tokens = {1, 1};
  batch.block_table = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const GDNAttentionMetadata out = build(batch, 1, MambaCacheMode::kAlign);
  EXPECT_EQ(out.spec_state_indices_tensor, (Ints{3, 4}));
  EXPECT_EQ(out.non_spec_state_indices_tensor, (Ints{6}));
}

TEST(GdnBuilder, ModesAndSpecsItCannotServeAreRefused) {
  EngineConfig config;
  EXPECT_THROW(GDNAttentionMetadataBuilder(spec_of(0, MambaCacheMode::kAll), {"layer"}, config, cpu_device()), Error);
  EXPECT_THROW(GDNAttentionMetadataBuilder(FullAttentionSpec{}, {"layer"}, config, cpu_device()), Error);
}

}  // namespace
}  // namespace coluber
