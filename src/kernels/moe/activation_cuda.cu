// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_operation.cuh"
#include "kernels/moe/activation.h"

namespace coluber {
namespace {

constexpr int kThreads = 256;

__device__ inline float gelu(float x) { return 0.5f * x * erfcf(-x * 0.70710678118654752f); }

__device__ float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return silu(x);
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;
    case Activation::kRelu2:
      return x < 0.0f ? 0.0f : x * x;
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kTanh:
      return tanhf(x);
    case Activation::kQuickGelu:
      return x * sigmoid(1.702f * x);
    case Activation::kGelu10:
      return gelu(x) > 10.0f ? 10.0f : gelu(x);
    case Activation::kMish:
      return x * tanhf(softplus(x));
    case Activation::kLaplace:
      return 0.5f * erfcf((0.707107f - x) / (0.282095f * 1.41421356237309505f));
    case Activation::kHardswish:
      return x < -3.0f ? 0.0f : x > 3.0f ? x : x * (x + 3.0f) / 6.0f;
    case Activation::kRelu6:
      return x < 0.0f ? 0.0f : x > 6.0f ? 6.0f : x;
    case Activation::kLeakyRelu:
      return x < 0.0f ? 0.01f * x : x;
    case Activation::kLinear:
      return x;
    case Activation::kSqrtSoftplus:
      return sqrtf(softplus(x));
    case Activation::kEluPlusOne:
      return x > 0.0f ? x + 1.0f : expf(x);
  }
  return x;
}

__global__ void activate_elements(const __grid_constant__ ActivateArgs args) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= args.rows * args.cols) return;
  const int64_t row = i / args.cols, c = i % args.cols;
  const float gate = args.gate_scale * args.gate[row * args.gate_stride + c];
  float y = activated(args.activation, gate > args.limit ? args.limit : gate);
  if (args.up != nullptr) {
    const float up = args.up[row * args.up_stride + c];
    y *= up > args.limit ? args.limit : up < -args.limit ? -args.limit : up;
  }
  args.out[row * args.out_stride + c] = y;
}

CudaStatus activate_on_device(const ActivateArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return nullptr;
  activate_elements<<<blocks_of(args.rows * args.cols, kThreads), kThreads, 0, stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(activate, ActivateArgs, activate_on_device)
