// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope/rope.h"

#include "kernels/op_registry.h"

#include <utility>

#define COLUBER_SIMD_SOURCE "kernels/rope/rope_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

using TurnHeads = void (*)(const RopeArgs&, float*, int64_t, const float*, const float*);

// Cosine and sine of one token, in the order in which the tiers read them.
void fill_turns(const RopeArgs& args, int64_t position, float* cosine, float* sine) {
  for (int64_t i = 0; i < args.rotary_dim / 2; ++i) {
    const double angle = static_cast<double>(position) * args.frequencies[i];
    const float c = static_cast<float>(std::cos(angle) * args.attention_factor);
    const float s = static_cast<float>(std::sin(angle) * args.attention_factor);
    if (args.interleaved) {
      cosine[2 * i] = cosine[2 * i + 1] = c;
      sine[2 * i] = -s;
      sine[2 * i + 1] = s;
    } else {
      cosine[i] = c;
      sine[i] = s;
    }
  }
}

template <TurnHeads turn_heads>
void rope_tiered(const RopeArgs& args, ThreadPool& pool, Workspace& workspace) {
  WorkspaceScope scope(workspace);
  float* turns = workspace.take<float>(2 * args.rotary_dim * pool.size());
  auto body = [&](int64_t begin, int64_t end, int thread) {
    float* cosine = turns + 2 * args.rotary_dim * thread;
    float* sine = cosine + args.rotary_dim;
    for (int64_t t = begin; t < end; ++t) {
      fill_turns(args, args.positions[t], cosine, sine);
      turn_heads(args, args.q + t * args.q_stride, args.num_q_heads, cosine, sine);
      turn_heads(args, args.k + t * args.k_stride, args.num_k_heads, cosine, sine);
    }
  };
  // A token costs about a microsecond: fewer than these are done before a worker would wake.
  constexpr int64_t kGrain = 8;
  if (args.num_tokens <= kGrain) return body(0, args.num_tokens, 0);
  pool.parallel_for(args.num_tokens, kGrain, body);
}

}  // namespace

const Operation<RopeFunction>& rope() {
  static const Operation<RopeFunction> operation("rope",
                                                 {{"avx512", Isa::kAvx512, &rope_tiered<avx512::rope_turn_heads>},
                                                  {"avx2", Isa::kAvx2, &rope_tiered<avx2::rope_turn_heads>},
                                                  {"ref", Isa::kRef, &rope_ref}});
  return operation;
}

namespace {
const RegisterOperations kEntered(rope);
}

}  // namespace coluber
