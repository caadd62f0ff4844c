// SPDX-License-Identifier: Apache-2.0
//
// Products on the tensor cores by NVIDIA's cuBLASLt, which is opened when the first product asks for it: it takes half
// a gigabyte, most programs that use a GPU have it already, and without it the float32 products of gemm_cuda.cu remain.
// The one place that knows it. Looked for in $COLUBER_CUBLASLT_LIBRARY, else where the system looks, else in the
// toolkit's usual folder. Never closed; thread-safe.
#pragma once

#include <cstdint>

#include "coluber/dtype.h"
#include "tensor/cuda_api.h"

namespace coluber {

// C [M, N] (+)= A [M, K] W [N, K]^T + bias [N], sums in float32.
struct NarrowProduct {
  DType dtype = DType::kBFloat16;  // of A and W: kBFloat16 or kFloat16
  const void* a = nullptr;         // rows K apart
  const void* w = nullptr;         // rows K apart
  int64_t m = 0, n = 0, k = 0;
  const float* bias = nullptr;  // or null
  float* c = nullptr;           // rows ldc apart
  int64_t ldc = 0;
  bool accumulate = false;
};

// Elements of K that rows have to be a multiple of, so that each starts at a multiple of 16 bytes.
inline constexpr int64_t kCublasLtStep = 8;

// Whether there is a cuBLASLt that runs on the calling thread's device.
bool cublas_lt_runs();
// Puts the product on the stream, with scratch of the launch. `done` is false, and nothing is launched, where cuBLASLt
// is not there or has no algorithm for these sizes and addresses. The same sizes and alignments give the same bits.
CudaStatus multiply_by_cublas_lt(const NarrowProduct& product, const CudaLaunch& launch, bool* done);

// What products of 16 bits are computed by, or why not by cuBLASLt: for the log. Valid as long as the program.
using ProductsNoteFunction = const char* (*)();
inline constexpr const char* kProductsNote = "coluber_cuda_products_note";

}  // namespace coluber
