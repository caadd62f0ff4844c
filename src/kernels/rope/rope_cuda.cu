// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_operation.cuh"
#include "kernels/rope/rope.h"

namespace coluber {
namespace {

constexpr int kThreads = 128;

// A thread a pair of one head, queries first.
__global__ void __launch_bounds__(kThreads) turn(const __grid_constant__ RopeArgs args) {
  const int64_t pairs = args.rotary_dim / 2, heads = args.num_q_heads + args.num_k_heads;
  const int64_t at = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (at >= args.num_tokens * heads * pairs) return;
  const int64_t i = at % pairs, head = at / pairs % heads, t = at / pairs / heads;
  float* x = head < args.num_q_heads ? args.q + t * args.q_stride + head * args.head_dim
                                     : args.k + t * args.k_stride + (head - args.num_q_heads) * args.head_dim;
  double sine, cosine;
  sincos(static_cast<double>(args.positions[t]) * args.frequencies[i], &sine, &cosine);
  const float c = static_cast<float>(cosine * args.attention_factor),
              s = static_cast<float>(sine * args.attention_factor);
  float& first = x[args.interleaved ? 2 * i : i];
  float& second = x[args.interleaved ? 2 * i + 1 : i + pairs];
  const float a = first, b = second;
  first = a * c - b * s;
  second = b * c + a * s;
}

CudaStatus rope_on_device(const RopeArgs& args, cudaStream_t stream) {
  const int64_t threads = args.num_tokens * (args.num_q_heads + args.num_k_heads) * (args.rotary_dim / 2);
  if (threads == 0) return nullptr;
  turn<<<blocks_of(threads, kThreads), kThreads, 0, stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(rope, RopeArgs, rope_on_device)
