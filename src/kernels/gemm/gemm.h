// SPDX-License-Identifier: Apache-2.0
//
// C[m, n] (+)= sum_k A[m, k] * W[n, k] + bias[n], float32 activations times a packed weight.
//
// Each output is one chain of fused multiply-adds over k in ascending order, whatever m is: a row's result does not
// depend on the rows beside it, so one-token steps and prefills agree bit for bit, and so do all candidates. The bias,
// then the old C, are added last. (With `allow_bf16`, a bf16 weight and a processor that has bf16 dot products, A is
// rounded to bf16 and pairs of products are summed as the processor does; results then still do not depend on m, but
// differ between candidates. On a CUDA device a bf16 or fp16 weight of enough rows and columns then goes to the tensor
// cores, with A rounded to the weight's type and sums in an order that depends on m.) A weight in blocks gives the bits
// of a float32 weight of its values. A few rows stream the weights once at memory speed; more rows are blocked for the
// caches.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/gemm/packed_matrix.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

struct GemmArgs {
  const float* a = nullptr;  // [M, K], row stride lda
  int64_t lda = 0;
  int64_t m = 0;
  const PackedMatrix* w = nullptr;  // [N, K]
  const float* bias = nullptr;      // [N] or null
  float* c = nullptr;               // [M, N], row stride ldc; not overlapping A
  int64_t ldc = 0;
  bool accumulate = false;  // add to C instead of overwriting it
  bool allow_bf16 = false;  // A may be rounded to 16 bits
};

using GemmFunction = void (*)(const GemmArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<GemmFunction>& gemm();

// Whether `allow_bf16` makes products faster here: there are processors whose bf16 dot products run at half the rate of
// float32 multiply-adds per operation (measured: Sapphire Rapids) and others at twice (Zen 5). Times both once, for
// well under a millisecond; the answers lie far apart, so that noise does not change it.
bool bf16_products_pay();

// Against the reference: the same bits without `allow_bf16`; with it, activations rounded to 8 bits (11 of a float16
// weight on a device).
inline constexpr Tolerance kGemmTolerance = {};
inline constexpr Tolerance kGemmBf16Tolerance = {.absolute = 0, .relative = 0, .of_rms = 2e-2};
// The reference against sums in double: the rounding of K additions.
inline constexpr Tolerance kGemmExactTolerance = {.absolute = 0, .relative = 1e-6, .of_rms = 1e-5};

}  // namespace coluber
