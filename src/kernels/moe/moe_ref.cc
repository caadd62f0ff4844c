// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/moe/experts.h"
#include "kernels/moe/silu_mul.h"

namespace coluber {

void silu_mul_ref(const SiluMulArgs& args, ThreadPool&) {
  for (int64_t i = 0; i < args.count; ++i) {
    const double x = args.gate[i];
    args.out[i] = static_cast<float>(x / (1.0 + std::exp(-x)) * args.up[i]);
  }
}

void combine_experts_ref(const CombineExpertsArgs& args, ThreadPool&) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t d = 0; d < args.width; ++d) {
      double sum = 0;
      for (int64_t j = t * args.top_k; j < (t + 1) * args.top_k; ++j) {
        sum += static_cast<double>(args.weights[j]) * args.rows[args.places[j] * args.width + d];
      }
      float& y = args.y[t * args.width + d];
      y = static_cast<float>(args.accumulate ? y + sum : sum);
    }
  }
}

}  // namespace coluber
