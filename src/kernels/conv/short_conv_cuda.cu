// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/short_conv_cuda.h"

#include "kernels/conv/conv_cuda.cuh"

namespace coluber {
namespace {

template <typename T>
struct Gated {
  using Args = ShortConvCudaArgs;
  template <int kVector>
  __device__ static void load(const Args& args, int64_t token, int64_t channel, float (&to)[kVector]) {
    const int64_t place = token * args.in_stride + channel;
    float b[kVector];
    load_some(static_cast<const T*>(args.b) + place, b);
    load_some(static_cast<const T*>(args.x) + place, to);
#pragma unroll
    for (int i = 0; i < kVector; ++i) to[i] *= b[i];
  }
  template <int kVector>
  __device__ static void store(const Args& args, int64_t token, int64_t channel, float (&sum)[kVector]) {
    float gate[kVector];
    load_some(static_cast<const T*>(args.c_gate) + token * args.in_stride + channel, gate);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] *= gate[i];
    store_some(static_cast<T*>(args.y) + token * args.y_stride + channel, sum);
  }
  template <int kVector>
  __device__ static void zero(const Args& args, int64_t token, int64_t channel) {
    const float zeros[kVector] = {};
    store_some(static_cast<T*>(args.y) + token * args.y_stride + channel, zeros);
  }
};

CudaStatus run(const ShortConvCudaArgs& args, bool is_update, CudaStream stream) {
  return with_activations(args.activations, [&](auto t) {
    using T = decltype(t);
    bool aligned = inputs_are_aligned<T>(args.y, args.y_stride);
    for (const void* input : {args.b, args.c_gate, args.x})
      aligned = aligned && inputs_are_aligned<T>(input, args.in_stride);
    return run_conv<Gated<T>>(args, aligned, is_update, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace
}  // namespace coluber

extern "C" {
coluber::CudaStatus coluber_cuda_short_conv(const coluber::ShortConvCudaArgs* args, coluber::CudaStream stream) {
  return coluber::run(*args, false, stream);
}
coluber::CudaStatus coluber_cuda_short_conv_update(const coluber::ShortConvCudaArgs* args, coluber::CudaStream stream) {
  return coluber::run(*args, true, stream);
}
}
