// SPDX-License-Identifier: Apache-2.0
//
// What bounds an operation on a CUDA device: bytes copied through its memory. Internal to benchmarks.
#pragma once

#include <cstdint>

#include "tensor/cuda_api.h"

namespace coluber {

// Copies `bytes`, a multiple of 4096, on the stream: one load and one store of 16 bytes a thread, the fastest of the
// simple copies measured on an H200 (four a thread: 4 % slower).
using CopyCudaFunction = CudaStatus (*)(void* to, const void* from, int64_t bytes, CudaStream stream);
inline constexpr const char* kCopyCuda = "coluber_cuda_roofline_copy";

}  // namespace coluber
