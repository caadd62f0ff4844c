// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/block_type.h"
#include "base/dtype.h"
#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/op_test.h"
#include "kernels/quant/block_types.h"

namespace coluber {
namespace {

namespace fs = std::filesystem;

// Blocks of a type over and over: rows of different beginnings.
std::string blocks_of(const std::string& name, int64_t bytes) {
  std::ifstream file(fs::path(COLUBER_SOURCE_DIR) / "tests/data/quant" / (name + ".blocks"), std::ios::binary);
  const std::string some{std::istreambuf_iterator<char>(file), {}};
  std::string all;
  while (!some.empty() && static_cast<int64_t>(all.size()) < bytes) all += some;
  all.resize(static_cast<size_t>(bytes));
  return all;
}

std::vector<float> product(const GemmFunction f, const PackedMatrix& w, const std::vector<float>& a, int64_t m,
                           const float* bias, ThreadPool& pool) {
  std::vector<float> c(static_cast<size_t>(m * w.n()), 1.0f);
  Workspace workspace;
  f(GemmArgs{a.data(), w.k(), m, &w, bias, c.data(), w.n(), true, false}, pool, workspace);
  return c;
}

TEST(GemmBlocks, AnyTypeGivesTheBitsOfItsValuesInFloat32ForAnyNumberOfRows) {
  ThreadPool pool(2);
  constexpr int64_t kN = 150, kK = 768;
  const std::vector<float> bias = random_floats(kN, -1, 1, 2);
  for (const char* name : {"Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ2_XS", "MXFP4"}) {
    const DType dtype = *quantized_dtype(name);
    const std::string blocks = blocks_of(name, dtype_bytes(dtype, kN * kK));
    std::vector<float> values(kN * kK);
    convert_to_float(blocks.data(), dtype, kN * kK, values.data());
    const PackedMatrix quantized = PackedMatrix::pack(TensorView::contiguous(blocks.data(), dtype, {kN, kK}), pool);
    const PackedMatrix plain =
        PackedMatrix::pack(TensorView::contiguous(values.data(), DType::kFloat32, {kN, kK}), pool);
    EXPECT_EQ(quantized.bytes(), static_cast<int64_t>(blocks.size())) << name << " is expanded in memory";
    for (const int64_t m : {1, 3, 40}) {
      const std::vector<float> a = random_floats(m * kK, -1, 1, 7);
      for (const auto& candidate : gemm().candidates()) {
        if (candidate.isa > active_isa()) continue;
        EXPECT_EQ(product(candidate.function, quantized, a, m, bias.data(), pool),
                  product(candidate.function, plain, a, m, bias.data(), pool))
            << name << ", " << candidate.name << ", " << m << " rows";
      }
    }
  }
}

TEST(GemmBlocks, RefusesRowsThatAreNoWholeBlocks) {
  ThreadPool pool(1);
  const std::string blocks(180, '\0');
  EXPECT_THROW(PackedMatrix::pack(TensorView::contiguous(blocks.data(), *quantized_dtype("Q4_0"), {2, 48}), pool),
               Error);
}

}  // namespace
}  // namespace coluber
