// SPDX-License-Identifier: Apache-2.0
// A group of columns belongs to a warp, or to a block where it is wide; it is read twice, the second time from the
// caches.
#include "kernels/cuda_states.cuh"
#include "kernels/norm/gated_norm_cuda.h"

namespace coluber {
namespace {

enum class GatePlace { kNone, kBefore, kBehind };

__device__ inline float gate_of(Gate gate, float z) { return gate == Gate::kSilu ? silu(z) : sigmoid(z); }

// Over the block, in every thread; sums has a place a warp.
template <int kWarps>
__device__ inline float sum_over_block(float v, float* sums) {
  v = sum_over_lanes<32>(v);
  if constexpr (kWarps == 1) return v;
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0.0f;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) v += sums[i];
  return v;
}

template <typename T, GatePlace kPlace, int kVector>
__device__ inline void load_gated(const GatedRmsNormCudaArgs& args, int64_t row, int64_t column, float (&u)[kVector]) {
  load_some(static_cast<const T*>(args.x) + row * args.x_stride + column, u);
  if constexpr (kPlace == GatePlace::kBefore) {
    float z[kVector];
    load_some(static_cast<const T*>(args.z) + row * args.z_stride + column, z);
#pragma unroll
    for (int i = 0; i < kVector; ++i) u[i] *= gate_of(args.gate, z[i]);
  }
}

template <typename T, GatePlace kPlace, int kVector, int kWarps>
__global__ void __launch_bounds__(kWarps * 32)
    normalize_groups(const __grid_constant__ GatedRmsNormCudaArgs args, int width) {
  __shared__ float sums[kWarps];
  const int64_t row = blockIdx.x, first = static_cast<int64_t>(blockIdx.y) * width;
  const int begin = static_cast<int>(threadIdx.x) * kVector;
  constexpr int kStep = kWarps * 32 * kVector;
  float squares = 0.0f, u[kVector];
  for (int i = begin; i < width; i += kStep) {
    load_gated<T, kPlace>(args, row, first + i, u);
#pragma unroll
    for (float element : u) squares = fmaf(element, element, squares);
  }
  const float factor = rsqrtf(sum_over_block<kWarps>(squares, sums) / static_cast<float>(width) + args.eps);
  for (int i = begin; i < width; i += kStep) {
    load_gated<T, kPlace>(args, row, first + i, u);
    float weight[kVector], z[kVector];
    if (args.weight != nullptr) load_some(args.weight + first + i, weight);
    if constexpr (kPlace == GatePlace::kBehind)
      load_some(static_cast<const T*>(args.z) + row * args.z_stride + first + i, z);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      u[j] *= factor;
      if (args.weight != nullptr) u[j] *= weight[j] + args.weight_offset;
      if constexpr (kPlace == GatePlace::kBehind) u[j] *= gate_of(args.gate, z[j]);
    }
    store_some(static_cast<T*>(args.y) + row * args.y_stride + first + i, u);
  }
}

template <typename T, GatePlace kPlace, int kVector>
void launch(const GatedRmsNormCudaArgs& args, int width, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.groups));
  if (width <= 32 * kVector * 4) {
    normalize_groups<T, kPlace, kVector, 1><<<grid, 32, 0, stream>>>(args, width);
  } else {
    normalize_groups<T, kPlace, kVector, 8><<<grid, 256, 0, stream>>>(args, width);
  }
}

template <GatePlace kPlace>
CudaStatus run(const GatedRmsNormCudaArgs& args, CudaStream stream) {
  if (args.rows == 0 || args.cols == 0) return nullptr;
  if (args.rows < 0 || args.rows > INT32_MAX || args.groups < 1 || args.groups > 65535 ||
      args.cols % args.groups != 0 || args.cols / args.groups > INT32_MAX)
    return "sizes that do not fit together";
  return with_activations(args.activations, [&](auto t) {
    using T = decltype(t);
    const auto width = static_cast<int>(args.cols / args.groups);
    const bool aligned = width % 8 == 0 && inputs_are_aligned<T>(args.x, args.x_stride) &&
                         inputs_are_aligned<T>(args.y, args.y_stride) &&
                         (kPlace == GatePlace::kNone || inputs_are_aligned<T>(args.z, args.z_stride)) &&
                         reinterpret_cast<uintptr_t>(args.weight) % 16 == 0;
    if (aligned) {
      launch<T, kPlace, 8>(args, width, static_cast<cudaStream_t>(stream));
    } else {
      launch<T, kPlace, 1>(args, width, static_cast<cudaStream_t>(stream));
    }
    return launch_status();
  });
}

}  // namespace
}  // namespace coluber

extern "C" {
coluber::CudaStatus coluber_cuda_rms_norm(const coluber::GatedRmsNormCudaArgs* args, coluber::CudaStream stream) {
  return coluber::run<coluber::GatePlace::kNone>(*args, stream);
}
coluber::CudaStatus coluber_cuda_gate_then_rms_norm(const coluber::GatedRmsNormCudaArgs* args,
                                                    coluber::CudaStream stream) {
  return coluber::run<coluber::GatePlace::kBefore>(*args, stream);
}
coluber::CudaStatus coluber_cuda_rms_norm_then_gate(const coluber::GatedRmsNormCudaArgs* args,
                                                    coluber::CudaStream stream) {
  return coluber::run<coluber::GatePlace::kBehind>(*args, stream);
}
}
