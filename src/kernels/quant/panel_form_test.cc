// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/panel_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/block_type.h"
#include "base/dtype.h"
#include "kernels/quant/block_types.h"
#include "kernels/quant/scaled_types.h"

namespace coluber {
namespace {

std::vector<const BlockType*> types_with_panels() {
  std::vector<const BlockType*> types;
  for (const char* name :
       {"Q4_0",   "Q4_1",  "Q5_0",  "Q5_1",    "Q8_0",   "Q2_K",  "Q3_K",    "Q4_K",  "Q5_K",  "Q6_K", "IQ4_NL",
        "IQ4_XS", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ2_0", "MXFP4"})
    if (const std::optional<DType> type = quantized_dtype(name)) types.push_back(find_block_type(*type));
  EXPECT_EQ(types.size(), 21u);
  for (int c = 0; c < kNumScaledCodes; ++c)
    for (const int64_t group : {16, 32, 64, 128})
      types.push_back(find_block_type(scaled_dtype({static_cast<ScaledCode>(c), group})));
  return types;
}

TEST(PanelForm, SixteenRowsAtOnceGiveTheGroupsOfOneAfterTheOther) {
  constexpr int64_t kBlocks = 3;
  std::mt19937 random(1);
  for (const BlockType* type : types_with_panels()) {
    ASSERT_NE(type->panel, nullptr) << type->name;
    const PanelForm& form = *type->panel;
    const int64_t row_stride = kBlocks * type->bytes + 5, group = PanelForm::kRows * type->bytes;
    std::vector<std::byte> rows(static_cast<size_t>(PanelForm::kRows * row_stride));
    for (std::byte& byte : rows) byte = static_cast<std::byte>(random());
    std::vector<std::byte> together(static_cast<size_t>(2 * kBlocks * group)), single = together;
    put_into_groups(form, {rows.data(), row_stride, kBlocks}, together.data(), 2 * group);
    std::vector<std::byte> back(static_cast<size_t>(type->bytes));
    for (int64_t b = 0; b < kBlocks; ++b) {
      for (int64_t r = 0; r < PanelForm::kRows; ++r) {
        const std::byte* block = rows.data() + r * row_stride + b * type->bytes;
        put_into_group(form, block, r, single.data() + b * 2 * group);
        take_from_group(form, together.data() + b * 2 * group, r, back.data());
        EXPECT_TRUE(std::equal(back.begin(), back.end(), block)) << type->name << ", row " << r << ", block " << b;
      }
    }
    EXPECT_EQ(together, single) << type->name;
  }
}

}  // namespace
}  // namespace coluber
