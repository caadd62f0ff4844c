// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/gemm_cpu.h"

#include <type_traits>

#define COLUBER_SIMD_SOURCE "kernels/gemm/gemm_cpu.inl"
#include "kernels/simd/foreach_isa.h"

namespace coluber {

void avx2::gemm_f32(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  multiply_f32(args, pool, workspace);
}
void avx512::gemm_f32(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  multiply_f32(args, pool, workspace);
}
void avx512_bf16::gemm_bf16(const GemmArgs& args, ThreadPool& pool, Workspace& workspace) {
  multiply_bf16(args, pool, workspace);
}
float avx512_bf16::fma_chains(int64_t rounds) { return time_fma_chains(rounds); }
float avx512_bf16::dot_chains(int64_t rounds) { return time_dot_chains(rounds); }

}  // namespace coluber
