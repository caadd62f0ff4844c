// SPDX-License-Identifier: Apache-2.0
//
// The two sweeps over a whole vocabulary that sampling needs. Both are exact: every candidate gives the same bits, so
// that the same logits and seed give the same token on every machine.
//
//   scan_logits   block_maxima[b] = max of block b of kScanBlock logits; says whether a NaN or +infinity is there
//                 (block_maxima then mean nothing)
//   sum_weights   block_sums[b] = sum over block b of kSumBlock logits of w = exp((logit - maximum) *
//   inverse_temperature),
//                 0 where w < floor: eight interleaved chains s[j] = sum_i w[8 i + j], then
//                 ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)), in double, w by exact_exp
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace coluber {

inline constexpr int64_t kScanBlock = 64;
inline constexpr int64_t kSumBlock = 256;

struct ScanLogitsArgs {
  const float* logits = nullptr;  // [V]
  int64_t vocab = 0;
  float* block_maxima = nullptr;  // [ceil(V / kScanBlock)]
};

// True where a logit is NaN or +infinity.
using ScanLogitsFunction = bool (*)(const ScanLogitsArgs& args);
const Operation<ScanLogitsFunction>& scan_logits();

struct SumWeightsArgs {
  const float* logits = nullptr;  // [V], none above `maximum`
  int64_t vocab = 0;
  float maximum = 0;
  double inverse_temperature = 1;
  double floor = 0;
  double* block_sums = nullptr;  // [ceil(V / kSumBlock)]
};

using SumWeightsFunction = void (*)(const SumWeightsArgs& args);
const Operation<SumWeightsFunction>& sum_weights();

// The weight of one logit, as sum_weights has it.
double sampling_weight(float logit, float maximum, double inverse_temperature, double floor) noexcept;

bool scan_logits_ref(const ScanLogitsArgs& args);
void sum_weights_ref(const SumWeightsArgs& args);

}  // namespace coluber
