// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_operation.cuh"
#include "kernels/linear/silu.h"

namespace coluber {
namespace {

constexpr int kThreads = 256;

__global__ void silu_elements(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) y[i] = silu(x[i]);
}

CudaStatus silu_on_device(const SiluArgs& args, cudaStream_t stream) {
  if (args.count == 0) return nullptr;
  silu_elements<<<blocks_of(args.count, kThreads), kThreads, 0, stream>>>(args.x, args.y, args.count);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(silu, SiluArgs, silu_on_device)
