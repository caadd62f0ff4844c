// SPDX-License-Identifier: Apache-2.0
//
// Matrix products with bfloat16 weights at the sizes of a published model's projections, as the engine's layers ask for
// them: activations float32, rounded to bfloat16 for the tensor cores or not rounded.
#pragma once

#include <vector>

#include "apps/bench_ops/device_bench.h"

namespace coluber::bench_ops {

inline constexpr const char* kProducts = "gemm";
inline constexpr const char* kFloat32Products = "gemm_float32";

// A row for each projection; Case::batch is the rows of activations.
std::vector<Row> bench_products(CudaDevice& device, const Case& c, bool allow_bf16);

}  // namespace coluber::bench_ops
