// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_operation.cuh"
#include "kernels/elementwise/scale.h"

namespace coluber {
namespace {

constexpr int kThreads = 256;

__global__ void scale_elements(const __grid_constant__ ScaleArgs args) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= args.rows * args.cols) return;
  const int64_t row = i / args.cols, c = i % args.cols;
  const float factor = args.column_factor != nullptr ? args.column_factor[c]
                       : args.row_factor != nullptr  ? args.row_factor[row]
                                                     : args.factor;
  // Rounds after each step, as on the processor.
  float value = __fmul_rn(args.x[row * args.x_stride + c], factor);
  if (args.column_bias != nullptr) value = __fadd_rn(value, args.column_bias[c]);
  float& y = args.y[row * args.y_stride + c];
  y = args.accumulate ? __fadd_rn(y, value) : value;
}

CudaStatus scale_on_device(const ScaleArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return nullptr;
  scale_elements<<<blocks_of(args.rows * args.cols, kThreads), kThreads, 0, stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(scale, ScaleArgs, scale_on_device)
