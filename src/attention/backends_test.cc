// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "attention/backend_names.h"
#include "attention/batch_test.h"
#include "attention/full_attention.h"
#include "coluber/backend.h"
#include "coluber/error.h"
#include "coluber/linear_attention.h"
#include "tensor/device.h"

namespace coluber {
namespace {

using test::Batch;
using test::Ints;

TEST(BackendRegistry, EveryRowOfTheTableNamesTheBackendThatItsEnumSelects) {
  for (const BackendNames& row : kBackendNames) {
    const AttentionBackend& backend = row.type ? get_mamba_attn_backend(*row.type) : get_full_attn_backend();
    EXPECT_EQ(backend.name(), row.class_name);
    EXPECT_EQ(find_backend_names(row.class_name)->type, row.type);
  }
  EXPECT_EQ(find_backend_names(MambaAttentionBackendEnum::kGdnAttn)->backend, "gdn_attn");
  EXPECT_EQ(find_backend_names(MambaAttentionBackendEnum::kCustom), nullptr);
}

TEST(BackendRegistry, EveryMemberOfTheEnumHasABackendOrIsCustom) {
  for (const std::string_view name : {"MAMBA1", "MAMBA2", "SHORT_CONV", "LINEAR", "GDN_ATTN", "CUSTOM"}) {
    const auto type = parse_mamba_type(name);
    ASSERT_TRUE(type) << name;
    EXPECT_EQ(mamba_type_name(*type), name);
    if (*type == MambaAttentionBackendEnum::kCustom) continue;
    MambaSpec spec;
    spec.block_size = 16;
    spec.mamba_type = *type;
    EXPECT_NE(get_mamba_attn_backend(*type).get_builder_cls()(spec, {"layer"}, EngineConfig{}, cpu_device()), nullptr);
  }
  EXPECT_EQ(parse_mamba_type("mamba3"), std::nullopt);
}

class OwnBackend : public AttentionBackend {
 public:
  std::string_view name() const noexcept override { return "OwnBackend"; }
  BuilderFactory get_builder_cls() const override { return {}; }
};

TEST(BackendRegistry, CustomBackendsAreFoundByNameAndRefusedWithoutOne) {
  constexpr MambaAttentionBackendEnum kCustom = MambaAttentionBackendEnum::kCustom;
  EXPECT_THROW(get_mamba_attn_backend(kCustom), Error);
  register_custom_backend("own", std::make_unique<OwnBackend>());
  EXPECT_EQ(get_mamba_attn_backend(kCustom, "own").name(), "OwnBackend");
  EXPECT_THROW(register_custom_backend("own", std::make_unique<OwnBackend>()), Error);
  EXPECT_THROW(register_custom_backend("none", nullptr), Error);
  try {
    get_mamba_attn_backend(kCustom, "other");
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    EXPECT_NE(std::string(error.what()).find("'own'"), std::string::npos) << error.what();
  }
}

MambaSpec linear_spec(MambaCacheMode mode = MambaCacheMode::kNone) {
  MambaSpec spec;
  spec.block_size = 16;
  spec.mamba_type = MambaAttentionBackendEnum::kLinear;
  spec.mamba_cache_mode = mode;
  return spec;
}

TEST(LinearAttentionBuilder, FillsItsSevenFieldsAndWhichRowsHaveAState) {
  static_assert(LinearAttentionMetadataBuilder::reorder_batch_threshold == 1);
  Batch batch;
  batch.query_lens = {1, 1, 4, 0};
  batch.seq_lens = {9, 1, 20, 0};
  batch.is_prefilling = {0, 1, 1, 0};  // not read
  batch.block_table = {{1, 2}, {3, 4}, {5, 6}, {0, 0}};
  batch.padding_tokens = 3;
  LinearAttentionMetadataBuilder builder(linear_spec(), {"layer"}, EngineConfig{}, cpu_device());
  const LinearAttentionMetadata& out = builder.build(0, batch.common());
  EXPECT_EQ(out.num_decodes, 2);
  EXPECT_EQ(out.num_decode_tokens, 2);
  EXPECT_EQ(out.num_prefills, 2);
  EXPECT_EQ(out.num_prefill_tokens, 7);
  EXPECT_EQ(out.query_start_loc, (Ints{0, 1, 2, 6, 6}));
  EXPECT_EQ(out.seq_lens, (Ints{9, 1, 20, 0}));
  EXPECT_EQ(out.state_indices_tensor, (Ints{1, 3, 5, 0}));
  EXPECT_EQ(out.has_initial_states, (std::vector<uint8_t>{1, 0, 1, 0}));
}

TEST(LinearAttentionBuilder, AlignModeReadsTheRunningColumn) {
  Batch batch;
  batch.query_lens = {1, 4};
  batch.seq_lens = {17, 16};
  batch.block_table = {{1, 2}, {3, 4}};
  LinearAttentionMetadataBuilder builder(linear_spec(MambaCacheMode::kAlign), {"layer"}, EngineConfig{}, cpu_device());
  EXPECT_EQ(builder.build(0, batch.common()).state_indices_tensor, (Ints{2, 3}));
}

TEST(LinearAttentionBuilder, StatesInsidePrefillsAreCountedByPrefill) {
  Batch batch;
  batch.query_lens = {1, 40, 8};
  batch.seq_lens = {9, 40, 20};
  batch.block_table = {{1}, {2}, {3}};
  LinearAttentionMetadataBuilder builder(linear_spec(), {"layer"}, EngineConfig{}, cpu_device());
  CommonAttentionMetadata common = batch.common();
  const std::vector<StateExport> wanted = {{1, 16, 7}, {2, 4, 8}};
  common.state_exports = wanted;
  const LinearAttentionMetadata& out = builder.build(0, common);
  EXPECT_EQ(out.exports.starts, (Ints{0, 1, 2}));
  EXPECT_EQ(out.exports.offsets, (Ints{16, 4}));
  EXPECT_EQ(out.exports.blocks, (Ints{7, 8}));
  common.state_exports = {};
  EXPECT_TRUE(builder.build(0, common).exports.starts.empty());
}

TEST(LinearAttentionBuilder, OtherSpecsAreRefused) {
  EXPECT_THROW(LinearAttentionMetadataBuilder(FullAttentionSpec{}, {"layer"}, EngineConfig{}, cpu_device()), Error);
}

TEST(FullAttentionBuilder, BorrowsTheBatchAndChecksItsPages) {
  FullAttentionSpec spec;
  spec.block_size = 4;
  Batch batch;
  batch.query_lens = {1, 3};
  batch.seq_lens = {8, 3};
  batch.block_table = {{1, 2}, {3, 0}};
  batch.slot_mapping = {11, 12, 13, 14};
  FullAttentionMetadataBuilder builder(spec, {"layer"}, EngineConfig{}, cpu_device());
  const CommonAttentionMetadata& common = batch.common();
  const FullAttentionMetadata& out = builder.build(0, common);
  EXPECT_EQ(out.num_reqs, 2);
  EXPECT_EQ(out.num_actual_tokens, 4);
  EXPECT_EQ(out.query_start_loc.data(), common.query_start_loc.data());
  EXPECT_EQ(out.block_table.at(1, 0), 3);
  EXPECT_EQ(out.slot_mapping[3], 14);
  batch.seq_lens = {9, 3};
  EXPECT_THROW(builder.build(0, batch.common()), Error);
  batch.seq_lens = {8, 3};
  batch.slot_mapping.pop_back();
  EXPECT_THROW(builder.build(0, batch.common()), Error);
  EXPECT_THROW(FullAttentionMetadataBuilder(linear_spec(), {"layer"}, EngineConfig{}, cpu_device()), Error);
}

}  // namespace
}  // namespace coluber
