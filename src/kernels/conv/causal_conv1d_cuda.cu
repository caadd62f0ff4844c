// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/causal_conv1d_cuda.h"

#include "kernels/conv/conv_cuda.cuh"

namespace coluber {
namespace {

// silu within 2e-6 of it up to |v| = 16, for outputs that keep 8 bits: two instructions of the special unit and four
// others, where the exact one's thirty are more than memory waits for.
__device__ inline float silu_fast(float v) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0f + exp2_fast(v * -1.44269504f)));
  return v * reciprocal;
}

template <typename T>
struct Causal {
  using Args = CausalConv1dCudaArgs;
  template <int kVector>
  using Asked = AskedElements<T, kVector>;
  template <int kVector>
  __device__ static Asked<kVector> ask(const Args& args, int64_t token, int64_t channel) {
    return Asked<kVector>::from(static_cast<const T*>(args.x) + token * args.x_stride + channel);
  }
  template <int kVector>
  __device__ static void input(const AskedElements<T, kVector>& asked, float (&to)[kVector]) {
    asked.take(to);
  }
  template <int kVector>
  __device__ static void store(const Args& args, const AskedElements<T, kVector>&, int64_t token, int64_t channel,
                               float (&sum)[kVector]) {
    if (args.silu != 0) {
#pragma unroll
      for (float& value : sum) value = sizeof(T) == 2 ? silu_fast(value) : silu(value);
    }
    store_some(static_cast<T*>(args.y) + token * args.y_stride + channel, sum);
  }
  template <int kVector>
  __device__ static void zero(const Args& args, int64_t token, int64_t channel) {
    const float zeros[kVector] = {};
    store_some(static_cast<T*>(args.y) + token * args.y_stride + channel, zeros);
  }
};

CudaStatus run(const CausalConv1dCudaArgs& args, bool is_update, CudaStream stream) {
  return with_activations(args.activations, [&](auto t) {
    using T = decltype(t);
    const bool aligned = inputs_are_aligned<T>(args.x, args.x_stride) && inputs_are_aligned<T>(args.y, args.y_stride);
    return run_conv<Causal<T>>(args, aligned, is_update, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace
}  // namespace coluber

extern "C" {
coluber::CudaStatus coluber_cuda_causal_conv1d(const coluber::CausalConv1dCudaArgs* args, coluber::CudaStream stream) {
  return coluber::run(*args, false, stream);
}
coluber::CudaStatus coluber_cuda_causal_conv1d_update(const coluber::CausalConv1dCudaArgs* args,
                                                      coluber::CudaStream stream) {
  return coluber::run(*args, true, stream);
}
}
