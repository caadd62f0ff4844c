// SPDX-License-Identifier: Apache-2.0
//
// Steps of one token a sequence of the recurrences other than SSD, in place over shuffled slots, at the sizes of
// published models.
#pragma once

#include "apps/bench_ops/device_bench.h"
#include "coluber/dtype.h"

namespace coluber::bench_ops {

struct DecodeCase {
  const char* operation;
  const char* shape;
  Row (*run)(CudaDevice& device, const Case& c);
};

// Gated DeltaNet (qwen3_next), KDA (kimi_linear), lightning attention (minimax), Mamba-1 (mamba_2_8b), RWKV-7
// (rwkv7_7b).
std::vector<DecodeCase> recurrent_decode_cases();

}  // namespace coluber::bench_ops
