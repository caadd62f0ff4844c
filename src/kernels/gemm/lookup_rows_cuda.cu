// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_operation.cuh"
#include "kernels/gemm/lookup_rows.h"

namespace coluber {
namespace {

constexpr int kThreads = 256;

__global__ void copy_rows(const void* table, DType dtype, const int32_t* ids, int64_t rows, int64_t cols, float* y) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < rows * cols) y[i] = load_element(table, dtype, ids[i / cols] * cols + i % cols);
}

CudaStatus lookup_on_device(const LookupRowsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  const void* table = args.packed != nullptr ? args.packed->data() : args.table;
  const DType dtype = args.packed != nullptr ? args.packed->dtype() : args.dtype;
  if (!is_float_state(dtype)) return "a table of this type does not run on the device (floating types do)";
  copy_rows<<<blocks_of(args.rows * args.cols, kThreads), kThreads, 0, stream>>>(table, dtype, args.ids, args.rows,
                                                                                 args.cols, args.y);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(lookup_rows, LookupRowsArgs, lookup_on_device)
