// SPDX-License-Identifier: Apache-2.0
#include "kernels/roofline/roofline_cuda.h"

#include "kernels/cuda_mma.cuh"

namespace coluber {
namespace {

__global__ void __launch_bounds__(256) copy_words(uint4* to, const uint4* from) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  to[i] = from[i];
}

// Eight warps with eight independent sums each; factors change from one product to the next.
__global__ void __launch_bounds__(256) multiply_fragments(float* sums, int repeats) {
  uint32_t left[4], right[16];
  uint32_t random = blockIdx.x * 256 + threadIdx.x + 1;
  const auto next = [&] {
    random = random * 1664525u + 1013904223u;
    const float value = static_cast<float>(random >> 8) * (1.0f / 8388608) - 1.0f;
    random = random * 1664525u + 1013904223u;
    return pack_pair(value, static_cast<float>(random >> 8) * (1.0f / 8388608) - 1.0f);
  };
#pragma unroll
  for (uint32_t& word : left) word = next();
#pragma unroll
  for (uint32_t& word : right) word = next();
  float sum[8][4] = {};
  for (int i = 0; i < repeats; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) multiply_add(sum[j], left, right[2 * j], right[2 * j + 1]);
    left[i % 4 == 0 ? 0 : 1] ^= 0x00010001u;
  }
  float total = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) total += sum[j][0] + sum[j][1] + sum[j][2] + sum[j][3];
  sums[blockIdx.x * 256 + threadIdx.x] = total;
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_roofline_copy(void* to, const void* from, int64_t bytes,
                                                          coluber::CudaStream stream) {
  if (bytes <= 0 || bytes % 4096 != 0) return "a size that is no multiple of 4096 bytes";
  coluber::copy_words<<<static_cast<unsigned>(bytes / 4096), 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from));
  return coluber::launch_status();
}

extern "C" coluber::CudaStatus coluber_cuda_roofline_products(const coluber::ProductsCudaArgs* args,
                                                              coluber::CudaStream stream) {
  if (args->blocks <= 0 || args->repeats <= 0) return "no blocks or no repeats";
  coluber::multiply_fragments<<<static_cast<unsigned>(args->blocks), 256, 0, static_cast<cudaStream_t>(stream)>>>(
      args->sums, args->repeats);
  return coluber::launch_status();
}
