// SPDX-License-Identifier: Apache-2.0
#include "attention/recurrent_attention.h"

#include <gtest/gtest.h>

#include "attention/batch_test.h"
#include "coluber/error.h"
#include "tensor/device.h"

namespace coluber {
namespace {

using test::Batch;
using test::Ints;

MambaSpec spec() {
  MambaSpec spec;
  spec.block_size = 64;
  spec.mamba_type = MambaAttentionBackendEnum::kCustom;
  return spec;
}

TEST(RecurrentAttention, KindsAreFoundByTheNamesThatTheyRegister) {
  const RegisterRecurrentBackend first("recurrent_test_a"), second("recurrent_test_b");
  const AttentionBackend& a = get_mamba_attn_backend(MambaAttentionBackendEnum::kCustom, "recurrent_test_a");
  const AttentionBackend& b = get_mamba_attn_backend(MambaAttentionBackendEnum::kCustom, "recurrent_test_b");
  EXPECT_EQ(a.name(), "recurrent_test_a");
  EXPECT_NE(&a, &b);
  EXPECT_THROW(RegisterRecurrentBackend("recurrent_test_a"), Error);
}

TEST(RecurrentAttention, RowsOfOneTokenComeFirstWithTheirSlots) {
  const RecurrentAttentionBackend backend("recurrent_test_c");
  const auto builder = backend.get_builder_cls()(spec(), {"layer"}, EngineConfig{}, cpu_device());
  Batch batch;
  batch.query_lens = {1, 3, 2};
  batch.seq_lens = {9, 3, 7};
  batch.is_prefilling = {0, 1, 1};
  batch.block_table = {{4}, {5}, {6}};
  const auto& metadata = dynamic_cast<const RecurrentAttentionMetadata&>(builder->build(0, batch.common()));
  EXPECT_EQ(metadata.num_decodes, 1);
  EXPECT_EQ(metadata.num_prefills, 2);
  EXPECT_EQ(metadata.state_indices_tensor_d, (Ints{4}));
  EXPECT_EQ(metadata.state_indices_tensor_p, (Ints{5, 6}));
  EXPECT_EQ(metadata.query_start_loc_p, (Ints{0, 3, 5}));
  EXPECT_EQ(metadata.has_initial_states_p, (std::vector<uint8_t>{0, 1}));
}

TEST(RecurrentAttention, ASpecOfAttentionIsRefusedWithTheNames) {
  const RecurrentAttentionBackend backend("recurrent_test_d");
  try {
    backend.get_builder_cls()(FullAttentionSpec{}, {"blocks.0.att"}, EngineConfig{}, cpu_device());
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("recurrent_test_d"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("blocks.0.att"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coluber
