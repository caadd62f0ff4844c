// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/scaled_types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/block_type.h"
#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

std::vector<ScaledType> all_types() {
  std::vector<ScaledType> types;
  for (int c = 0; c < kNumScaledCodes; ++c)
    for (const int64_t group : {16, 32, 64, 128}) types.push_back({static_cast<ScaledCode>(c), group});
  return types;
}

TEST(ScaledTypes, AreBlockTypesWithNamesOfTheirOwn) {
  for (const ScaledType& type : all_types()) {
    const DType dtype = scaled_dtype(type);
    EXPECT_EQ(scaled_dtype(type), dtype);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_EQ(find_block_type(dtype)->elements, type.group);
    EXPECT_EQ(find_block_type(dtype)->bytes, scaled_block_bytes(type));
    const std::optional<ScaledType> found = find_scaled_type(dtype);
    ASSERT_TRUE(found) << dtype_name(dtype);
    EXPECT_EQ(found->code, type.code);
    EXPECT_EQ(found->group, type.group);
  }
  EXPECT_EQ(dtype_name(scaled_dtype({ScaledCode::kInt4, 128})), "INT4_G128");
  EXPECT_EQ(dtype_bytes(scaled_dtype({ScaledCode::kUInt4, 32}), 64), 2 * (4 + 1 + 16));
  EXPECT_FALSE(find_scaled_type(DType::kFloat32));
}

TEST(ScaledTypes, RefuseGroupsThatProductsCannotCut) {
  for (const int64_t group : {-1, 0, 1, 8, 24, 100, 256}) EXPECT_THROW(scaled_dtype({ScaledCode::kInt8, group}), Error);
}

TEST(ScaledTypes, HaveTheValuesOfTheirFormula) {
  std::mt19937 random(7);
  for (const ScaledType& type : all_types()) {
    constexpr int64_t kBlocks = 9;
    std::vector<std::byte> blocks(static_cast<size_t>(kBlocks * scaled_block_bytes(type)) + 1);
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(random());
    std::byte* first = blocks.data() + 1;  // any address
    for (int64_t b = 0; b < kBlocks; ++b) {
      const float scale = std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096.0f, static_cast<int>(b) - 4);
      std::memcpy(first + b * scaled_block_bytes(type), &scale, sizeof scale);
    }
    std::vector<float> found(static_cast<size_t>(kBlocks * type.group));
    convert_to_float(first, scaled_dtype(type), kBlocks * type.group, found.data());
    const float* values = scaled_code_values(type.code);
    for (int64_t i = 0; i < kBlocks * type.group; ++i) {
      const std::byte* block = first + i / type.group * scaled_block_bytes(type);
      const int64_t k = i % type.group, bits = scaled_code_bits(type.code);
      float scale = 0;
      std::memcpy(&scale, block, sizeof scale);
      const int zero = scaled_code_has_zero(type.code) ? static_cast<int>(block[4]) : 0;
      const int byte = static_cast<int>(block[scaled_codes_offset(type.code) + k * bits / 8]);
      const int code = bits == 8 ? byte : (k % 2 == 0 ? byte & 15 : byte >> 4);
      const float want = scale * (values[code] - static_cast<float>(zero));
      const float got = found[static_cast<size_t>(i)];
      ASSERT_TRUE(std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(want) ||
                  (std::isnan(got) && std::isnan(want)))
          << dtype_name(scaled_dtype(type)) << ", element " << i << ": expected " << want << ", found " << got;
    }
  }
}

TEST(ScaledTypes, KnowWhatTheirCodesStandFor) {
  EXPECT_EQ(scaled_code_values(ScaledCode::kInt4)[0], -8.0f);
  EXPECT_EQ(scaled_code_values(ScaledCode::kUInt4)[15], 15.0f);
  EXPECT_EQ(scaled_code_values(ScaledCode::kInt8)[0x80], -128.0f);
  EXPECT_EQ(scaled_code_values(ScaledCode::kUInt8)[255], 255.0f);
  EXPECT_EQ(scaled_code_values(ScaledCode::kFloat8E4M3)[0x7e], 448.0f);
  EXPECT_EQ(scaled_code_values(ScaledCode::kFloat8E5M2)[0x3c], 1.0f);
  EXPECT_EQ(scaled_code_values(ScaledCode::kFloat4E2M1)[15], -6.0f);
  EXPECT_EQ(scaled_code_values(ScaledCode::kNf4)[7], 0.0f);
  EXPECT_EQ(scaled_code_values(ScaledCode::kFp4)[3], 1.0f);
}

}  // namespace
}  // namespace coluber
