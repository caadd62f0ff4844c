// SPDX-License-Identifier: Apache-2.0
//
// C[m, n] (+)= sum_k A[m, k] * W[n, k] + bias[n], float32 activations times a packed weight.
//
// Each output is one chain of fused multiply-adds over k in ascending order, whatever m is: a row's result does not depend on
// the rows beside it, so one-token steps and prefills agree bit for bit. (With `allow_bf16` and a bf16 weight, A is rounded
// to bf16 and products may use the processor's bf16 dot instructions; results then still do not depend on m.)
// m = 1..3 streams the weights once at memory speed; larger m is blocked for the caches.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/gemm/packed_matrix.h"
#include "kernels/op.h"
#include "tensor/workspace.h"

namespace coluber {

struct GemmArgs {
  const float* a = nullptr;  // [M, K], row stride lda
  int64_t lda = 0;
  int64_t m = 0;
  const PackedMatrix* w = nullptr;  // [N, K]
  const float* bias = nullptr;      // [N] or null
  float* c = nullptr;               // [M, N], row stride ldc
  int64_t ldc = 0;
  bool accumulate = false;          // add to C instead of overwriting it
  bool allow_bf16 = false;
};

using GemmFunction = void (*)(const GemmArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<GemmFunction>& gemm();

}  // namespace coluber
