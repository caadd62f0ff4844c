// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/packed_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/thread_pool.h"

namespace coluber {
namespace {

int64_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
}

TEST(PackedMatrix, GivesAllOfItsAddressesBack) {
  if (mappings() == 0) GTEST_SKIP() << "this system does not tell a process its mappings";
  ThreadPool pool(1);
  const std::vector<float> values(static_cast<size_t>(40 * 48));
  for (const int64_t rows : {8, 40}) {  // sizes that do not fill their last page
    const TensorView weight = TensorView::contiguous(values.data(), DType::kFloat32, Shape{rows, 48});
    const int64_t before = mappings();
    for (int i = 0; i < 200; ++i) PackedMatrix::pack(weight, pool);
    EXPECT_LT(mappings() - before, 20) << rows << " rows";
  }
}

}  // namespace
}  // namespace coluber
