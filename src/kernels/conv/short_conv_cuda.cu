// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/short_conv_cuda.h"

#include "kernels/conv/conv_cuda.cuh"

namespace coluber {
namespace {

template <typename T>
struct Gated {
  using Args = ShortConvCudaArgs;
  template <int kVector>
  struct Asked {
    AskedElements<T, kVector> b, x, gate;
  };
  template <int kVector>
  __device__ static Asked<kVector> ask(const Args& args, int64_t token, int64_t channel) {
    const int64_t place = token * args.in_stride + channel;
    const auto at = [&](const void* input) {
      return AskedElements<T, kVector>::from(static_cast<const T*>(input) + place);
    };
    return {at(args.b), at(args.x), at(args.c_gate)};
  }
  template <int kVector>
  __device__ static void input(const Asked<kVector>& asked, float (&to)[kVector]) {
    float b[kVector];
    asked.b.take(b);
    asked.x.take(to);
#pragma unroll
    for (int i = 0; i < kVector; ++i) to[i] *= b[i];
  }
  template <int kVector>
  __device__ static void store(const Args& args, const Asked<kVector>& asked, int64_t token, int64_t channel,
                               float (&sum)[kVector]) {
    float gate[kVector];
    asked.gate.take(gate);
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
