// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/rope/rope.h"

namespace coluber {
namespace {

void turn_heads(const RopeArgs& args, int64_t position, float* heads, int64_t num_heads) {
  const int64_t pairs = args.rotary_dim / 2;
  for (int64_t h = 0; h < num_heads; ++h) {
    float* x = heads + h * args.head_dim;
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * args.frequencies[i];
      const double cosine = std::cos(angle) * args.attention_factor, sine = std::sin(angle) * args.attention_factor;
      float& first = x[args.interleaved ? 2 * i : i];
      float& second = x[args.interleaved ? 2 * i + 1 : i + pairs];
      const double a = first, b = second;
      first = static_cast<float>(a * cosine - b * sine);
      second = static_cast<float>(b * cosine + a * sine);
    }
  }
}

}  // namespace

void rope_ref(const RopeArgs& args, ThreadPool&, Workspace&) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    turn_heads(args, args.positions[t], args.q + t * args.q_stride, args.num_q_heads);
    turn_heads(args, args.positions[t], args.k + t * args.k_stride, args.num_k_heads);
  }
}

}  // namespace coluber
