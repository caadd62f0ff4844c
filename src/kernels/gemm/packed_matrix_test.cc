// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/packed_matrix.h"

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "base/thread_pool.h"

namespace coluber {
namespace {

// Of the process, real or not; 0 where the system does not tell.
int64_t pages_of_addresses() {
  std::ifstream sizes("/proc/self/statm");
  int64_t pages = 0;
  sizes >> pages;
  return pages;
}

TEST(PackedMatrix, GivesAllOfItsAddressesBack) {
  if (pages_of_addresses() == 0) GTEST_SKIP() << "this system does not tell a process the size of its mappings";
  ThreadPool pool(1);
  const std::vector<float> values(static_cast<size_t>(40 * 48));
  for (const int64_t rows : {8, 40}) {  // sizes that do not fill their last page
    const TensorView weight = TensorView::contiguous(values.data(), DType::kFloat32, Shape{rows, 48});
    PackedMatrix::pack(weight, pool);
    const int64_t before = pages_of_addresses();
    for (int i = 0; i < 50; ++i) PackedMatrix::pack(weight, pool);
    EXPECT_EQ(pages_of_addresses(), before) << rows << " rows";
  }
}

}  // namespace
}  // namespace coluber
