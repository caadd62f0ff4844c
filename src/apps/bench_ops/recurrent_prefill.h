// SPDX-License-Identifier: Apache-2.0
//
// Prefill of recurrent layers: packed sequences of as many tokens each, from a state to a state, at the sizes of
// published models. FLOPs are the fewest of the chunked forms at their usual chunk, bytes the inputs, outputs and
// states once.
#pragma once

#include "apps/bench_ops/device_bench.h"
#include "coluber/dtype.h"

namespace coluber::bench_ops {

struct PrefillCase {
  const char* operation;
  const char* shape;
  Row (*run)(CudaDevice& device, const Case& c);
};

// SSD and the convolution before it (nemotron_h), lightning attention (minimax), Gated DeltaNet (qwen3_next).
std::vector<PrefillCase> recurrent_prefill_cases();

}  // namespace coluber::bench_ops
