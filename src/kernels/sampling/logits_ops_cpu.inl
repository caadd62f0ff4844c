// SPDX-License-Identifier: Apache-2.0
// Eight doubles a step in every tier, with exact_exp's operations one for one: the compiler maps them to one or two
// registers.

typedef double SamplingDoubles __attribute__((vector_size(64)));
typedef int64_t SamplingInts __attribute__((vector_size(64)));
typedef float SamplingFloats __attribute__((vector_size(32)));

bool sampling_scan_logits(const ScanLogitsArgs& args) {
  uint32_t bad = 0;
  for (int64_t begin = 0; begin < args.vocab; begin += kScanBlock) {
    const float* x = args.logits + begin;
    const int64_t n = std::min(kScanBlock, args.vocab - begin);
    Vec top = set1(-__builtin_inff());
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) top = max(top, load(x + i));
    float maximum = reduce_max(top);
    for (; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
    for (int64_t j = 0; j < n; ++j) {
      uint32_t bits;
      std::memcpy(&bits, x + j, sizeof(bits));
      // +infinity and all NaN of either sign; minus infinity is a token that is ruled out.
      bad |= static_cast<uint32_t>((bits & 0x7fffffffu) > 0x7f800000u) | static_cast<uint32_t>(bits == 0x7f800000u);
    }
    args.block_maxima[begin / kScanBlock] = maximum;
  }
  return bad != 0;
}

void sampling_sum_weights(const SumWeightsArgs& args) {
  const double maximum = args.maximum;
  for (int64_t begin = 0; begin < args.vocab; begin += kSumBlock) {
    const int64_t n = std::min(kSumBlock, args.vocab - begin);
    SamplingDoubles sums = {};
    for (int64_t i = 0; i < n; i += 8) {
      SamplingFloats logits;
      if (i + 8 <= n) {
        std::memcpy(&logits, args.logits + begin + i, sizeof(logits));
      } else {
        logits = SamplingFloats{} - __builtin_inff();
        std::memcpy(&logits, args.logits + begin + i, static_cast<size_t>(n - i) * sizeof(float));
      }
      const SamplingDoubles x = (__builtin_convertvector(logits, SamplingDoubles) - maximum) * args.inverse_temperature;
      const SamplingDoubles shifted = x * ExactExp::kLog2E + ExactExp::kRounder;
      const SamplingDoubles whole = shifted - ExactExp::kRounder;
      const SamplingDoubles r = (x - whole * ExactExp::kLn2High) - whole * ExactExp::kLn2Low;
      SamplingDoubles p = SamplingDoubles{} + ExactExp::kTerms[0];
#pragma GCC unroll 13
      for (int t = 1; t < 14; ++t) p = p * r + ExactExp::kTerms[t];
      SamplingInts power;
      std::memcpy(&power, &shifted, sizeof(power));
      power = (power + 1023) << 52;
      SamplingDoubles scale;
      std::memcpy(&scale, &power, sizeof(scale));
      SamplingDoubles w = p * scale;
      w = x >= ExactExp::kSmallest ? w : SamplingDoubles{};
      sums += w >= args.floor ? w : SamplingDoubles{};
    }
    args.block_sums[begin / kSumBlock] =
        ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
}
