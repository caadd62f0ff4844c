// SPDX-License-Identifier: Apache-2.0
//
// SSD's step of one token a sequence, in place over shuffled slots.
#pragma once

#include "apps/bench_ops/device_bench.h"
#include "coluber/dtype.h"

namespace coluber::bench_ops {

struct SsdShape {
  const char* name;
  int64_t num_heads, head_dim, state_size, num_groups;
};
inline constexpr SsdShape kSsdShapes[] = {{"nemotron_h", 128, 64, 128, 8}, {"falcon_h1", 24, 128, 256, 1}};

Row bench_ssd_decode(CudaDevice& device, const SsdShape& shape, const Case& c);

}  // namespace coluber::bench_ops
