// SPDX-License-Identifier: Apache-2.0
//
// What bounds an operation on a CUDA device: bytes copied through its memory, products of its tensor cores. Internal to
// benchmarks.
#pragma once

#include <cstdint>

#include "tensor/cuda_api.h"

namespace coluber {

// Copies `bytes`, a multiple of 4096, on the stream: one load and one store of 16 bytes a thread, the fastest of the
// simple copies measured on an H200 (four a thread: 4 % slower).
using CopyCudaFunction = CudaStatus (*)(void* to, const void* from, int64_t bytes, CudaStream stream);
inline constexpr const char* kCopyCuda = "coluber_cuda_roofline_copy";

// Products of bfloat16 fragments, sums in float32, that leave registers no sooner than at the end: what mma.sync gives
// at most. Of random numbers, since the clock depends on what is multiplied. `sums`: as many floats as 256 a block.
struct ProductsCudaArgs {
  float* sums = nullptr;
  int32_t blocks = 0;
  int32_t repeats = 0;
};
// Operations that it counts for.
inline double flops_of(const ProductsCudaArgs& args) { return 8.0 * 8 * 4096 * args.blocks * args.repeats; }
using ProductsCudaFunction = CudaStatus (*)(const ProductsCudaArgs* args, CudaStream stream);
inline constexpr const char* kProductsCuda = "coluber_cuda_roofline_products";

}  // namespace coluber
