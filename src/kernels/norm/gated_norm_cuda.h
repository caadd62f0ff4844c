// SPDX-License-Identifier: Apache-2.0
//
// The root-mean-square norms of norm.h on a CUDA device: plain, with a gate in front, with a gate behind, in groups of
// columns. Inputs and outputs are float32 or bfloat16, weights and sums float32, each group's sum in an order that
// depends on its size alone: results are the same on every run and for every row beside. All pointers are the
// device's; what they point at is borrowed until the stream has done the work. In place (y = x or z) is fine.
#pragma once

#include <cstdint>

#include "coluber/dtype.h"
#include "kernels/norm/norm.h"
#include "tensor/cuda_api.h"

namespace coluber {

// Against the reference, with float32 activations.
inline constexpr Tolerance kNormCudaTolerance = {.absolute = 1e-30, .relative = 4e-6, .of_rms = 1e-6};

struct GatedRmsNormCudaArgs {
  DType activations = DType::kBFloat16;  // of x, z and y: kFloat32 or kBFloat16
  const void* x = nullptr;               // [R, C]
  int64_t x_stride = 0;                  // elements between rows, as every stride here
  const void* z = nullptr;               // [R, C]; not read by the plain norm
  int64_t z_stride = 0;
  Gate gate = Gate::kSilu;
  const float* weight = nullptr;  // [C] or null
  float weight_offset = 0;        // 1 where the stored weight is centred on zero
  float eps = 1e-5f;
  void* y = nullptr;  // [R, C]
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t groups = 1;  // of cols / groups columns each; at most 65535
};

using GatedRmsNormCudaFunction = CudaStatus (*)(const GatedRmsNormCudaArgs* args, CudaStream stream);
inline constexpr const char* kRmsNormCuda = "coluber_cuda_rms_norm";
inline constexpr const char* kGateThenRmsNormCuda = "coluber_cuda_gate_then_rms_norm";
inline constexpr const char* kRmsNormThenGateCuda = "coluber_cuda_rms_norm_then_gate";

}  // namespace coluber
