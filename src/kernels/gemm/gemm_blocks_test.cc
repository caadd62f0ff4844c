// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "base/block_type.h"
#include "base/dtype.h"
#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/op_test.h"
#include "kernels/quant/block_types.h"
#include "kernels/quant/scaled_types.h"

namespace coluber {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInterleaved[] = {"Q4_0",  "Q4_1",  "Q5_0",    "Q5_1",   "Q8_0",   "Q2_K",    "Q3_K",
                                        "Q4_K",  "Q5_K",  "Q6_K",    "IQ4_NL", "IQ4_XS", "TQ2_0",   "MXFP4",
                                        "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S",  "IQ3_XXS", "IQ3_S"};
constexpr const char* kByRows[] = {"TQ1_0", "NVFP4"};

// Blocks of a fixture over and over: rows of different beginnings.
std::string fixture_blocks(std::string_view name, int64_t bytes) {
  std::ifstream file(fs::path(COLUBER_SOURCE_DIR) / "tests/data/quant" / (std::string(name) + ".blocks"),
                     std::ios::binary);
  const std::string some{std::istreambuf_iterator<char>(file), {}};
  std::string all;
  while (!some.empty() && static_cast<int64_t>(all.size()) < bytes) all += some;
  all.resize(static_cast<size_t>(bytes));
  return all;
}

// Every code there is, with scales that an ordinary weight has, zero among them.
std::string random_blocks(const BlockType& type, int64_t count, bool float_scale) {
  std::mt19937 random(11);
  std::string all(static_cast<size_t>(count * type.bytes), '\0');
  for (char& byte : all) byte = static_cast<char>(random());
  for (int64_t b = 0; b < count; ++b) {
    char* block = all.data() + b * type.bytes;
    const float scale = random() % 7 == 0 ? 0.0f : std::ldexp(static_cast<float>(random() % 4096) - 2048.0f, -14);
    if (float_scale) {
      std::memcpy(block, &scale, sizeof scale);
      if (type.name.starts_with("UINT4")) block[4] = static_cast<char>(random() % 17);
      for (int64_t i = 4; type.name.starts_with("E4M3") && i < type.bytes; ++i)
        if ((block[i] & 0x7f) == 0x7f) block[i] = 0;
      for (int64_t i = 4; type.name.starts_with("E5M2") && i < type.bytes; ++i)
        if ((block[i] & 0x7c) == 0x7c) block[i] = 0;
      continue;
    }
    if (type.name == "MXFP4") block[0] = static_cast<char>(110 + random() % 20);
    int64_t offset = 0;
    for (const auto& units : type.panel->units) {
      // Units of two bytes are float16, but for one whose bits all have a meaning: finite ones.
      for (int64_t i = 0; i < units.count; ++i, offset += units.bytes)
        if (units.bytes == 2 && (type.name != "IQ1_M" || offset == 54))
          block[offset + 1] = static_cast<char>(block[offset + 1] & 0xbf);
    }
  }
  return all;
}

struct Weights {
  std::string blocks;
  std::vector<float> values;
  PackedMatrix packed, plain;
};

Weights make_weights(DType dtype, std::string blocks, int64_t n, int64_t k, ThreadPool& pool) {
  Weights weights{std::move(blocks), std::vector<float>(static_cast<size_t>(n * k)), {}, {}};
  convert_to_float(weights.blocks.data(), dtype, n * k, weights.values.data());
  weights.packed = PackedMatrix::pack(TensorView::contiguous(weights.blocks.data(), dtype, {n, k}), pool);
  weights.plain = PackedMatrix::pack(TensorView::contiguous(weights.values.data(), DType::kFloat32, {n, k}), pool);
  return weights;
}

std::vector<float> product(const GemmFunction f, const PackedMatrix& w, const std::vector<float>& a, int64_t m,
                           const float* bias, ThreadPool& pool) {
  std::vector<float> c(static_cast<size_t>(m * w.n()), 1.0f);
  Workspace workspace;
  f(GemmArgs{a.data(), w.k(), m, &w, bias, c.data(), w.n(), true, false}, pool, workspace);
  return c;
}

std::vector<DType> interleaved_types() {
  std::vector<DType> types;
  for (const char* name : kInterleaved) types.push_back(*quantized_dtype(name));
  for (int c = 0; c < kNumScaledCodes; ++c)
    for (const int64_t group : {16, 32, 64, 128}) types.push_back(scaled_dtype({static_cast<ScaledCode>(c), group}));
  return types;
}

Weights random_weights(DType dtype, int64_t n, int64_t k, ThreadPool& pool) {
  const BlockType& type = *find_block_type(dtype);
  return make_weights(dtype, random_blocks(type, n * k / type.elements, find_scaled_type(dtype).has_value()), n, k,
                      pool);
}

class GemmBlocks : public ::testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
};
INSTANTIATE_TEST_SUITE_P(Types, GemmBlocks, ::testing::ValuesIn(interleaved_types()),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_P(GemmBlocks, InterleavedOnesGiveTheBitsOfTheirValuesInFloat32ForAnyNumberOfRows) {
  constexpr int64_t kMostRows = 20;
  struct Size {
    int64_t n, k;
  };
  // Panels of every width, K that ends inside a tile's block of k.
  for (const Size size : {Size{150, 768}, Size{33, 1280}, Size{7, 256}, Size{64, 512}}) {
    const Weights weights = random_weights(GetParam(), size.n, size.k, pool_);
    ASSERT_NE(weights.packed.panel_form(), nullptr);
    const std::vector<float> bias = random_floats(size.n, -1, 1, 2);
    const std::vector<float> a = random_floats(kMostRows * size.k, -1, 1, 7);
    const std::vector<float> want =
        product(gemm().reference().function, weights.plain, a, kMostRows, bias.data(), pool_);
    for (const auto& candidate : gemm().candidates()) {
      if (candidate.isa > active_isa()) {
        name_unrun_tier("gemm", candidate.name);
        continue;
      }
      for (int64_t m = 1; m <= kMostRows; m += candidate.isa == Isa::kRef ? 19 : 1) {
        const std::vector<float> got = product(candidate.function, weights.packed, a, m, bias.data(), pool_);
        ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin()))
            << candidate.name << ", " << m << " rows, " << size.n << " outputs";
      }
    }
  }
}

TEST_P(GemmBlocks, InterleavedOnesTakeTheBytesOfTheFileAndComeBackAsTheyWere) {
  const Weights weights = random_weights(GetParam(), 80, 512, pool_);
  EXPECT_EQ(weights.packed.bytes(), static_cast<int64_t>(weights.blocks.size()));
  std::vector<float> row(512);
  for (int64_t n = 0; n < 80; ++n) {
    weights.packed.unpack_row(n, row.data());
    ASSERT_EQ(std::memcmp(row.data(), weights.values.data() + n * 512, sizeof(float) * 512), 0) << "row " << n;
  }
}

TEST(GemmRowsOfBlocks, GiveTheBitsOfTheirValuesInFloat32ForAnyNumberOfRows) {
  ThreadPool pool(2);
  constexpr int64_t kN = 150, kK = 768;
  const std::vector<float> bias = random_floats(kN, -1, 1, 2);
  for (const char* name : kByRows) {
    const DType dtype = *quantized_dtype(name);
    const Weights weights = make_weights(dtype, fixture_blocks(name, dtype_bytes(dtype, kN * kK)), kN, kK, pool);
    ASSERT_EQ(weights.packed.panel_form(), nullptr);
    EXPECT_EQ(weights.packed.bytes(), static_cast<int64_t>(weights.blocks.size())) << name << " is expanded in memory";
    for (const int64_t m : {1, 3, 40}) {
      const std::vector<float> a = random_floats(m * kK, -1, 1, 7);
      for (const auto& candidate : gemm().candidates()) {
        if (candidate.isa > active_isa()) continue;
        EXPECT_EQ(product(candidate.function, weights.packed, a, m, bias.data(), pool),
                  product(candidate.function, weights.plain, a, m, bias.data(), pool))
            << name << ", " << candidate.name << ", " << m << " rows";
      }
    }
  }
}

// What vectors would not give exactly stays in rows, whose values are the decoder's.
TEST(GemmBlocksIrregular, KeepTheirRows) {
  ThreadPool pool(1);
  struct Case {
    DType dtype;
    int64_t byte;  // of some block
    std::string bytes;
  };
  const auto scale = [](float value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  };
  const Case cases[] = {{scaled_dtype({ScaledCode::kFloat8E4M3, 32}), 9, "\x7f"},
                        {scaled_dtype({ScaledCode::kUInt4, 32}), 4, "\xff"},
                        {scaled_dtype({ScaledCode::kInt8, 32}), 0, scale(1e-38f)},
                        {scaled_dtype({ScaledCode::kInt4, 32}), 0, scale(1e38f)},
                        {scaled_dtype({ScaledCode::kFloat4E2M1, 32}), 0, scale(NAN)},
                        {scaled_dtype({ScaledCode::kUInt8, 32}), 0, scale(-INFINITY)},
                        {*quantized_dtype("MXFP4"), 0, std::string("\x01\x55", 2)}};
  constexpr int64_t kN = 20, kK = 64;
  const std::vector<float> a = random_floats(kK, 0.5f, 1, 7);
  for (const Case& c : cases) {
    const BlockType& type = *find_block_type(c.dtype);
    std::string blocks = random_blocks(type, kN * kK / type.elements, find_scaled_type(c.dtype).has_value());
    const Weights before = make_weights(c.dtype, blocks, kN, kK, pool);
    EXPECT_NE(before.packed.panel_form(), nullptr) << type.name;
    std::memcpy(blocks.data() + 21 * type.bytes + c.byte, c.bytes.data(), c.bytes.size());
    const Weights weights = make_weights(c.dtype, blocks, kN, kK, pool);
    EXPECT_EQ(weights.packed.panel_form(), nullptr) << type.name;
    const std::vector<float> got = product(gemm().selected().function, weights.packed, a, 1, nullptr, pool);
    const std::vector<float> want = product(gemm().selected().function, weights.plain, a, 1, nullptr, pool);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) << type.name << ", output " << i;
  }
}

TEST(GemmBlocksIrregular, AnMxfp4BlockOfZerosIsNone) {
  ThreadPool pool(1);
  const BlockType& type = *find_block_type(*quantized_dtype("MXFP4"));
  std::string blocks = random_blocks(type, 40, false);
  std::memset(blocks.data() + 3 * type.bytes, 0, static_cast<size_t>(type.bytes));
  const Weights weights = make_weights(*quantized_dtype("MXFP4"), blocks, 20, 64, pool);
  ASSERT_NE(weights.packed.panel_form(), nullptr);
  const std::vector<float> a = random_floats(64, 0.5f, 1, 7);
  EXPECT_EQ(product(gemm().selected().function, weights.packed, a, 1, nullptr, pool),
            product(gemm().selected().function, weights.plain, a, 1, nullptr, pool));
}

TEST(GemmBlocksIrregular, RefusesRowsThatAreNoWholeBlocks) {
  ThreadPool pool(1);
  const std::string blocks(180, '\0');
  EXPECT_THROW(PackedMatrix::pack(TensorView::contiguous(blocks.data(), *quantized_dtype("Q4_0"), {2, 48}), pool),
               Error);
}

}  // namespace
}  // namespace coluber
