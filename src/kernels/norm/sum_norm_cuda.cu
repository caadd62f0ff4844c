// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_operation.cuh"
#include "kernels/norm/sum_norm.h"

namespace coluber {
namespace {

constexpr int kWarps = 4;

// A warp has one group.
__global__ void __launch_bounds__(kWarps * 32) norm_groups(const __grid_constant__ SumNormArgs args) {
  const int64_t i = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (i >= args.rows * args.groups) return;
  float* group = args.x + i / args.groups * args.stride + i % args.groups * args.cols;
  float sum = 0.0f;
  for (int64_t c = threadIdx.x % 32; c < args.cols; c += 32) sum += fabsf(group[c]);
  sum = sum_over_lanes<32>(sum);
  if (sum < args.floor) sum = args.floor;
  for (int64_t c = threadIdx.x % 32; c < args.cols; c += 32) group[c] /= sum;
}

CudaStatus norm_on_device(const SumNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  norm_groups<<<blocks_of(args.rows * args.groups, kWarps), kWarps * 32, 0, stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(sum_norm, SumNormArgs, norm_on_device)
