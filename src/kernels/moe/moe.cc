// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe/experts.h"
#include "kernels/moe/silu_mul.h"

#define COLUBER_SIMD_SOURCE "kernels/moe/moe_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {
namespace {

// What one thread does in about the time that a worker needs to wake: 4096 exponentials.
constexpr int64_t kElementGrain = 4096;

template <void (*part)(const float*, const float*, float*, int64_t)>
void silu_mul_parallel(const SiluMulArgs& args, ThreadPool& pool) {
  if (args.count <= kElementGrain) return part(args.gate, args.up, args.out, args.count);
  pool.parallel_for(args.count, kElementGrain, [&](int64_t begin, int64_t end, int) {
    part(args.gate + begin, args.up + begin, args.out + begin, end - begin);
  });
}

template <void (*token)(const CombineExpertsArgs&, int64_t)>
void combine_parallel(const CombineExpertsArgs& args, ThreadPool& pool) {
  const int64_t work = std::max<int64_t>(1, args.top_k * args.width);
  const int64_t grain = std::max<int64_t>(1, 8 * kElementGrain / work);
  auto body = [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) token(args, t);
  };
  if (args.num_tokens <= grain) return body(0, args.num_tokens, 0);
  pool.parallel_for(args.num_tokens, grain, body);
}

}  // namespace

const Operation<SiluMulFunction>& silu_mul() {
  static const Operation<SiluMulFunction> operation("silu_mul",
                                                    {{"avx512", Isa::kAvx512, &silu_mul_parallel<avx512::moe_silu_mul>},
                                                     {"avx2", Isa::kAvx2, &silu_mul_parallel<avx2::moe_silu_mul>},
                                                     {"ref", Isa::kRef, &silu_mul_ref}});
  return operation;
}

const Operation<CombineExpertsFunction>& combine_experts() {
  static const Operation<CombineExpertsFunction> operation(
      "combine_experts", {{"avx512", Isa::kAvx512, &combine_parallel<avx512::moe_combine>},
                          {"avx2", Isa::kAvx2, &combine_parallel<avx2::moe_combine>},
                          {"ref", Isa::kRef, &combine_experts_ref}});
  return operation;
}

}  // namespace coluber
