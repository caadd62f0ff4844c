// SPDX-License-Identifier: Apache-2.0
//
// Rows of a table as float32: y[i] = table[ids[i]]. Embeddings, and the rows of activations that an output head wants.
// The table is a tensor as it was stored or, where `packed` is given, a packed weight.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "coluber/dtype.h"
#include "kernels/gemm/packed_matrix.h"
#include "kernels/op.h"

namespace coluber {

struct LookupRowsArgs {
  const PackedMatrix* packed = nullptr;  // [V, D]
  const void* table = nullptr;           // [V, D] of `dtype` where nothing is packed
  DType dtype = DType::kFloat32;
  const int32_t* ids = nullptr;  // [rows], inside the table
  int64_t rows = 0;
  int64_t cols = 0;    // D
  float* y = nullptr;  // [rows, D]
};

using LookupRowsFunction = void (*)(const LookupRowsArgs& args, ThreadPool& pool);
const Operation<LookupRowsFunction>& lookup_rows();

}  // namespace coluber
