// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/sampling/exact_exp.h"
#include "kernels/sampling/logits_ops.h"

namespace coluber {

double sampling_weight(float logit, float maximum, double inverse_temperature, double floor) noexcept {
  const double w = exact_exp((static_cast<double>(logit) - static_cast<double>(maximum)) * inverse_temperature);
  return w >= floor ? w : 0.0;
}

bool scan_logits_ref(const ScanLogitsArgs& args) {
  bool non_finite = false;
  for (int64_t begin = 0; begin < args.vocab; begin += kScanBlock) {
    float maximum = -std::numeric_limits<float>::infinity();
    for (int64_t i = begin; i < std::min(begin + kScanBlock, args.vocab); ++i) {
      const float x = args.logits[i];
      non_finite |= std::isnan(x) || x == std::numeric_limits<float>::infinity();
      maximum = std::max(maximum, x);
    }
    args.block_maxima[begin / kScanBlock] = maximum;
  }
  return non_finite;
}

void sum_weights_ref(const SumWeightsArgs& args) {
  for (int64_t begin = 0; begin < args.vocab; begin += kSumBlock) {
    double s[8] = {};
    for (int64_t i = begin; i < std::min(begin + kSumBlock, args.vocab); ++i) {
      s[i % 8] += sampling_weight(args.logits[i], args.maximum, args.inverse_temperature, args.floor);
    }
    args.block_sums[begin / kSumBlock] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
}

}  // namespace coluber
