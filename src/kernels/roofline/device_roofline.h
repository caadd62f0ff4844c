// SPDX-License-Identifier: Apache-2.0
//
// What a CUDA device can do at best, now: the limits that benchmarks report shares of, as roofline.h has the
// processor's. Both take a fraction of a second and want the device for themselves. The thread that calls uses the
// device.
#pragma once

#include <cstdint>

#include "tensor/cuda_device.h"

namespace coluber {

// What product_rate counts, for who reads a share of it. Kernels that multiply by warp groups may be above it.
inline constexpr const char* kDeviceProducts = "bfloat16 products by mma.sync";

// Bytes a second, read and written, of the fastest plain copy (roofline_cuda.h), of 2 GiB or what a quarter of the free
// memory holds. Throws Error(kOutOfMemory) where the second-level cache would hold too much of that.
double copy_bandwidth(CudaDevice& device);
// How many bytes it copies where so many are free; 0 where they are too few.
int64_t copy_bytes(int64_t free_bytes, int64_t l2_bytes);
// Operations a second, two for each multiply-add, of bfloat16 products by mma.sync (roofline_cuda.h).
double product_rate(CudaDevice& device);

}  // namespace coluber
