// SPDX-License-Identifier: Apache-2.0
#include "kernels/roofline/roofline_cuda.h"

#include "kernels/cuda_math.cuh"

namespace coluber {
namespace {

__global__ void __launch_bounds__(256) copy_words(uint4* to, const uint4* from) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  to[i] = from[i];
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
