// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/block_types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/block_type.h"
#include "base/dtype.h"
#include "base/error.h"

namespace coluber {
namespace {

namespace fs = std::filesystem;

const fs::path kFixtures = fs::path(COLUBER_SOURCE_DIR) / "tests/data/quant";

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFixtures)) {
    if (entry.path().extension() == ".blocks") names.push_back(entry.path().stem().string());
  }
  return names;
}

TEST(BlockTypes, GiveTheValuesOfThePackageBitForBit) {
  const std::vector<std::string> names = fixture_names();
  EXPECT_EQ(names.size(), 23U);
  for (const std::string& name : names) {
    const std::optional<DType> dtype = quantized_dtype(name);
    ASSERT_TRUE(dtype) << name;
    const BlockType& type = *find_block_type(*dtype);
    const std::string blocks = read_file(kFixtures / (name + ".blocks"));
    const std::string values = read_file(kFixtures / (name + ".f32"));
    const auto count = static_cast<int64_t>(blocks.size()) / type.bytes;
    ASSERT_EQ(static_cast<int64_t>(blocks.size()), count * type.bytes) << name;
    ASSERT_EQ(static_cast<int64_t>(values.size()), count * type.elements * 4) << name;
    std::vector<float> found(static_cast<size_t>(count * type.elements));
    convert_to_float(blocks.data(), *dtype, count * type.elements, found.data());
    int misses = 0;
    for (size_t i = 0; i < found.size() && misses < 3; ++i) {
      uint32_t want = 0;
      std::memcpy(&want, values.data() + 4 * i, sizeof want);
      if (std::bit_cast<uint32_t>(found[i]) == want) continue;
      ++misses;
      ADD_FAILURE() << name << ", element " << i << ": expected " << std::bit_cast<float>(want) << ", found "
                    << found[i];
    }
  }
}

TEST(BlockTypes, AreTypesLikeOthers) {
  const DType q4_k = *quantized_dtype("Q4_K");
  EXPECT_EQ(dtype_name(q4_k), "Q4_K");
  EXPECT_EQ(parse_dtype("Q4_K"), q4_k);
  EXPECT_EQ(dtype_bits(q4_k), 5);
  EXPECT_EQ(dtype_bytes(q4_k, 512), 288);
  EXPECT_TRUE(is_floating(q4_k));
  EXPECT_THROW(dtype_bytes(q4_k, 100), Error);
  EXPECT_THROW(dtype_size(q4_k), Error);
  EXPECT_EQ(find_block_type(DType::kFloat32), nullptr);
  EXPECT_FALSE(quantized_dtype("Q9_K"));
}

TEST(BlockTypes, AreRegisteredOnce) {
  ASSERT_TRUE(quantized_dtype("Q4_0"));
  EXPECT_THROW(register_block_type(*find_block_type(*quantized_dtype("Q4_0"))), Error);
  EXPECT_THROW(register_block_type({"float32", 1, 4, nullptr}), Error);
}

}  // namespace
}  // namespace coluber
