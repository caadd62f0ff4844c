// SPDX-License-Identifier: Apache-2.0
// A block has one group of columns of one row; sums close in one order, whatever rows are beside.
#include "kernels/cuda_operation.cuh"
#include "kernels/norm/norm.h"

namespace coluber {
namespace {

constexpr int kThreads = 256;

__device__ inline float gate_value(Gate gate, float z) { return gate == Gate::kSilu ? silu(z) : sigmoid(z); }
__device__ inline float weight_at(const RmsNormArgs& args, int64_t c) {
  return args.weight == nullptr ? 1.0f : args.weight[c] + args.weight_offset;
}

enum class GatePlace { kNone, kFirst, kLast };

template <GatePlace kPlace>
__global__ void __launch_bounds__(kThreads) normalize(const __grid_constant__ GatedRmsNormArgs args) {
  const RmsNormArgs& norm = args.norm;
  const int64_t row = blockIdx.x / args.groups, width = norm.cols / args.groups;
  const int64_t first = blockIdx.x % args.groups * width;
  const float* x = norm.x + row * norm.x_stride;
  const float* z = args.z + row * args.z_stride;
  const auto input = [&](int64_t c) { return kPlace == GatePlace::kFirst ? x[c] * gate_value(args.gate, z[c]) : x[c]; };
  float sum = 0.0f;
  for (int64_t c = first + threadIdx.x; c < first + width; c += kThreads) {
    const float u = input(c);
    sum = fmaf(u, u, sum);
  }
  sum = sum_over_block<kThreads>(sum);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + norm.eps);
  for (int64_t c = first + threadIdx.x; c < first + width; c += kThreads) {
    float y = input(c) * scale * weight_at(norm, c);
    if (kPlace == GatePlace::kLast) y *= gate_value(args.gate, z[c]);
    norm.y[row * norm.y_stride + c] = y;
  }
}

__global__ void __launch_bounds__(kThreads) layer_normalize(const __grid_constant__ LayerNormArgs args) {
  const RmsNormArgs& norm = args.norm;
  const float* x = norm.x + blockIdx.x * norm.x_stride;
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < norm.cols; c += kThreads) sum += x[c];
  const float mean = sum_over_block<kThreads>(sum) / static_cast<float>(norm.cols);
  float squares = 0.0f;
  for (int64_t c = threadIdx.x; c < norm.cols; c += kThreads) squares = fmaf(x[c] - mean, x[c] - mean, squares);
  const float scale = 1.0f / sqrtf(sum_over_block<kThreads>(squares) / static_cast<float>(norm.cols) + norm.eps);
  for (int64_t c = threadIdx.x; c < norm.cols; c += kThreads)
    norm.y[blockIdx.x * norm.y_stride + c] =
        (x[c] - mean) * scale * weight_at(norm, c) + (args.bias != nullptr ? args.bias[c] : 0.0f);
}

template <GatePlace kPlace>
CudaStatus gated_on_device(const GatedRmsNormArgs& args, cudaStream_t stream) {
  if (args.norm.rows == 0) return nullptr;
  normalize<kPlace><<<static_cast<unsigned>(args.norm.rows * args.groups), kThreads, 0, stream>>>(args);
  return launch_status();
}

CudaStatus rms_norm_on_device(const RmsNormArgs& args, cudaStream_t stream) {
  GatedRmsNormArgs without_gate;
  without_gate.norm = args;
  return gated_on_device<GatePlace::kNone>(without_gate, stream);
}

CudaStatus gate_first_on_device(const GatedRmsNormArgs& args, cudaStream_t stream) {
  return gated_on_device<GatePlace::kFirst>(args, stream);
}
CudaStatus gate_last_on_device(const GatedRmsNormArgs& args, cudaStream_t stream) {
  return gated_on_device<GatePlace::kLast>(args, stream);
}

CudaStatus layer_norm_on_device(const LayerNormArgs& args, cudaStream_t stream) {
  if (args.norm.rows == 0) return nullptr;
  layer_normalize<<<static_cast<unsigned>(args.norm.rows), kThreads, 0, stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(rms_norm, RmsNormArgs, rms_norm_on_device)
COLUBER_CUDA_OPERATION(gate_then_rms_norm, GatedRmsNormArgs, gate_first_on_device)
COLUBER_CUDA_OPERATION(rms_norm_then_gate, GatedRmsNormArgs, gate_last_on_device)
COLUBER_CUDA_OPERATION(layer_norm, LayerNormArgs, layer_norm_on_device)
