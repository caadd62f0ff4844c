// SPDX-License-Identifier: Apache-2.0
// The greedy choice on the device: a block has some thousand logits of a row, then a warp puts together what the blocks
// of its row found. Equal logits are told apart by id, so that the order in which they are compared does not matter.
#include "kernels/cuda_operation.cuh"
#include "kernels/sampling/largest_logits.h"

namespace coluber {
namespace {

constexpr int kThreads = 256, kWarps = 4;
constexpr int64_t kPart = 4096;  // logits of a block: a row of a large vocabulary is 32 blocks
constexpr unsigned kLanes = 0xffffffffu;

// No id where there is none above minus infinity; NaN as the logit where one of them is not finite.
struct Largest {
  float logit = -INFINITY;
  int32_t id = INT32_MAX;
};

__device__ inline bool is_nan(float x) { return x != x; }

__device__ inline Largest larger(const Largest& a, const Largest& b) {
  if (is_nan(a.logit)) return a;
  if (is_nan(b.logit)) return b;
  return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}

// In every lane.
__device__ inline Largest largest_of_warp(Largest own) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    own = larger(own, {__shfl_xor_sync(kLanes, own.logit, offset), __shfl_xor_sync(kLanes, own.id, offset)});
  return own;
}

__global__ void __launch_bounds__(kThreads)
    find_in_parts(const float* logits, int64_t vocab, int64_t parts, Largest* found) {
  __shared__ Largest of_warps[kThreads / 32];
  const int64_t row = blockIdx.x / parts, part = blockIdx.x % parts;
  const float* own = logits + row * vocab;
  const int64_t end = min((part + 1) * kPart, vocab);
  Largest largest;
#pragma unroll 8
  for (int64_t i = part * kPart + threadIdx.x; i < end; i += kThreads) {
    const float logit = own[i];
    if (!(logit < INFINITY)) largest.logit = NAN;
    if (logit > largest.logit) largest = {logit, static_cast<int32_t>(i)};
  }
  largest = largest_of_warp(largest);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) largest = larger(largest, of_warps[warp]);
  found[blockIdx.x] = largest;
}

__global__ void __launch_bounds__(kWarps * 32) choose(const Largest* found, int64_t rows, int64_t parts, int32_t* ids) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32;
  Largest largest;
  for (int64_t part = lane; part < parts; part += 32) largest = larger(largest, found[row * parts + part]);
  largest = largest_of_warp(largest);
  if (lane == 0) ids[row] = is_nan(largest.logit) || largest.id == INT32_MAX ? -1 : largest.id;
}

CudaStatus largest_on_device(const LargestLogitsArgs& args, const CudaLaunch& launch) {
  if (args.rows == 0) return nullptr;
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const int64_t parts = (args.vocab + kPart - 1) / kPart;
  auto* found =
      static_cast<Largest*>(launch.take(launch.workspace, args.rows * parts * static_cast<int64_t>(sizeof(Largest))));
  if (found == nullptr) return "no memory left for the largest logits of parts of rows";
  find_in_parts<<<static_cast<unsigned>(args.rows * parts), kThreads, 0, stream>>>(args.logits, args.vocab, parts,
                                                                                   found);
  choose<<<blocks_of(args.rows, kWarps), kWarps * 32, 0, stream>>>(found, args.rows, parts, args.ids);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(largest_logits, LargestLogitsArgs, largest_on_device)
