// SPDX-License-Identifier: Apache-2.0
//
// The SIMD candidates of gemm, one pair of functions a tier. Internal to this folder; arguments are checked by the
// caller.
#pragma once

#include "kernels/gemm/gemm.h"

namespace coluber {

namespace avx2 {
void gemm_f32(const GemmArgs& args, ThreadPool& pool, Workspace& workspace);
}
namespace avx512 {
void gemm_f32(const GemmArgs& args, ThreadPool& pool, Workspace& workspace);
}
namespace avx512_bf16 {
// Bfloat16 weights only.
void gemm_bf16(const GemmArgs& args, ThreadPool& pool, Workspace& workspace);
// Sixteen independent chains each, `rounds` long; the value only keeps the work alive.
float fma_chains(int64_t rounds);
float dot_chains(int64_t rounds);
}  // namespace avx512_bf16

void gemm_ref(const GemmArgs& args, ThreadPool& pool, Workspace& workspace);

}  // namespace coluber
