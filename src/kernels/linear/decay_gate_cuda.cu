// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_operation.cuh"
#include "kernels/linear/decay_gate.h"

namespace coluber {
namespace {

constexpr int kThreads = 256;

__global__ void log_sigmoid_elements(const __grid_constant__ LogSigmoidDecayArgs args) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= args.count) return;
  const float x = args.x[i];
  const float log = (fminf(x, 0.0f) - log1pf(expf(-fabsf(x)))) / args.normalizer;
  args.a[i] = expf(log < args.clamp_min ? args.clamp_min : log);
}

CudaStatus log_sigmoid_on_device(const LogSigmoidDecayArgs& args, cudaStream_t stream) {
  if (args.count == 0) return nullptr;
  log_sigmoid_elements<<<blocks_of(args.count, kThreads), kThreads, 0, stream>>>(args);
  return launch_status();
}

__global__ void bounded_elements(const __grid_constant__ BoundedDecayArgs args) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= args.tokens * args.channels) return;
  const float x = args.x[i], lower = args.lower == nullptr ? 0.0f : args.lower[i % args.channels];
  args.key[i] = (1.0f - lower) * sigmoid(-x);
  args.a[i] = fmaf(1.0f - lower, sigmoid(x), lower);
}

CudaStatus bounded_on_device(const BoundedDecayArgs& args, cudaStream_t stream) {
  if (args.tokens == 0 || args.channels == 0) return nullptr;
  bounded_elements<<<blocks_of(args.tokens * args.channels, kThreads), kThreads, 0, stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(log_sigmoid_decay, LogSigmoidDecayArgs, log_sigmoid_on_device)
COLUBER_CUDA_OPERATION(bounded_decay, BoundedDecayArgs, bounded_on_device)
