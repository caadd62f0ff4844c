// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/block_type.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "kernels/quant/block_types.h"

namespace coluber {
namespace {

// Of the error of llama.cpp's search, which the contract names.
constexpr double kMostOfForeignError = 1.05;

std::string fixture(const std::string& name) {
  return std::string(COLUBER_SOURCE_DIR) + "/tests/data/quantize/" + name;
}

std::vector<float> fixture_values() {
  const std::string bytes = read_text_file(fixture("values.f32"));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string quantized(const std::vector<float>& values, const std::string& name, int threads) {
  const DType type = *quantized_dtype(name);
  std::string blocks(static_cast<size_t>(dtype_bytes(type, static_cast<int64_t>(values.size()))), '\xa5');
  ThreadPool pool(threads);
  quantize_blocks(values.data(), static_cast<int64_t>(values.size()), type, reinterpret_cast<std::byte*>(blocks.data()),
                  pool);
  return blocks;
}

double relative_error(const std::vector<float>& values, const std::string& blocks, const std::string& name) {
  std::vector<float> found(values.size());
  convert_to_float(blocks.data(), *quantized_dtype(name), static_cast<int64_t>(values.size()), found.data());
  double difference = 0, sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - values[i], 2);
    sum += static_cast<double>(values[i]) * values[i];
  }
  return std::sqrt(difference / sum);
}

class Quantize : public testing::TestWithParam<const char*> {};

TEST_P(Quantize, PlainTypesAreThePackagesBytes) {
  const std::string name = GetParam();
  const std::string path = fixture(name + ".blocks");
  ASSERT_EQ(file_exists(path), !name.ends_with("_K"));
  if (!file_exists(path)) return;
  EXPECT_EQ(quantized(fixture_values(), name, 1), read_text_file(path));
}

TEST_P(Quantize, LeavesLittleError) {
  const std::vector<float> values = fixture_values();
  const double foreign = read_json_file(fixture("errors.json")).at(GetParam()).as_double();
  EXPECT_LE(relative_error(values, quantized(values, GetParam(), 1), GetParam()), kMostOfForeignError * foreign);
}

TEST_P(Quantize, EveryBlockIsCloseToItsValues) {
  const std::vector<float> all = fixture_values();
  for (size_t block = 0; block < all.size() / 256; ++block) {
    const std::vector<float> values(all.begin() + static_cast<int64_t>(256 * block),
                                    all.begin() + static_cast<int64_t>(256 * (block + 1)));
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::fabs(value));
    const std::string blocks = quantized(values, GetParam(), 1);
    std::vector<float> found(values.size());
    convert_to_float(blocks.data(), *quantized_dtype(GetParam()), 256, found.data());
    // A step of the coarsest type, and what a scale in float16 cannot tell from zero.
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(found[i], values[i], largest / 7 + 1e-6) << "block " << block << ", element " << i;
  }
}

TEST_P(Quantize, ThreadsDoNotChangeABit) {
  const std::vector<float> values = fixture_values();
  EXPECT_EQ(quantized(values, GetParam(), 3), quantized(values, GetParam(), 1));
}

TEST_P(Quantize, ValuesOfAGridComeBack) {
  // All codes of one scale, so that types with a minimum find the same grid as those around zero.
  const size_t levels = std::string(GetParam()).find('5') == 1 ? 32 : 16;
  std::vector<float> values(512);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 0.25f * (static_cast<float>(i * 5 % levels) - static_cast<float>(levels / 2));
  EXPECT_LE(relative_error(values, quantized(values, GetParam(), 1), GetParam()), 5e-3);
}

TEST_P(Quantize, ValuesThatAreHardlyThereBecomeZeros) {
  std::vector<float> values(256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1e-41f * (static_cast<float>(i % 7) - 3.0f);
  std::vector<float> found(values.size(), 1.0f);
  convert_to_float(quantized(values, GetParam(), 1).data(), *quantized_dtype(GetParam()), 256, found.data());
  for (const float value : found) EXPECT_EQ(value, 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Types, Quantize,
                         testing::Values("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"),
                         [](const auto& info) { return std::string(info.param); });

TEST(QuantizeTypes, OthersAreRefused) {
  EXPECT_FALSE(can_quantize(*quantized_dtype("Q2_K")));
  EXPECT_FALSE(can_quantize(DType::kFloat32));
  ThreadPool pool(1);
  const std::vector<float> values(256);
  std::byte out[256];
  EXPECT_THROW(quantize_blocks(values.data(), 256, *quantized_dtype("IQ4_XS"), out, pool), Error);
}

}  // namespace
}  // namespace coluber
