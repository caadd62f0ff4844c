// SPDX-License-Identifier: Apache-2.0
#include "kernels/scan/ssd_prefill_cuda.h"

#include "kernels/decay_chunks_cuda.cuh"

namespace coluber {
namespace {

template <typename T>
struct TimeSteps {
  using Raw = float;
  const T* dt;
  int64_t stride;
  const float *bias, *a;
  float least, most;

  __device__ Raw ask(int token, int head) const { return to_float(dt[token * stride + head]); }
  __device__ TokenGate of(Raw raw, int head) const {
    const float step = fminf(fmaxf(softplus(raw + (bias != nullptr ? bias[head] : 0.0f)), least), most);
    return {step * a[head] * 1.44269504f, step};
  }
};

DecayChunks chunks_of(const SsdPrefillCudaArgs& args) {
  const int64_t heads_of_group = args.num_heads / args.num_groups;
  const auto vectors = [](const void* first, int64_t token_stride, int64_t size, int64_t shared_by) {
    return HeadVectors{static_cast<const __nv_bfloat16*>(first), token_stride, size, shared_by};
  };
  DecayChunks chunks;
  chunks.q = vectors(args.c, args.c_stride, args.state_size, heads_of_group);
  chunks.k = vectors(args.b, args.b_stride, args.state_size, heads_of_group);
  chunks.v = vectors(args.x, args.x_stride, args.head_dim, 1);
  chunks.y = static_cast<__nv_bfloat16*>(args.y);
  chunks.y_stride = args.y_stride;
  chunks.skip = args.d;
  chunks.state = args.state;
  chunks.state_key_stride = 1;
  chunks.state_value_stride = args.state_size;
  chunks.exports = args.exports;
  chunks.query_start_loc = args.query_start_loc;
  chunks.rows = args.rows;
  chunks.num_heads = static_cast<int32_t>(args.num_heads);
  chunks.key_dim = static_cast<int32_t>(args.state_size);
  chunks.value_dim = static_cast<int32_t>(args.head_dim);
  return chunks;
}

template <typename T>
CudaStatus prefill(const SsdPrefillCudaArgs& args, CudaStream stream) {
  const TimeSteps<T> gate = {
      static_cast<const T*>(args.dt), args.dt_stride, args.dt_bias, args.a, args.dt_min, args.dt_max};
  return run_chunks(chunks_of(args), gate, static_cast<cudaStream_t>(stream));
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_ssd_prefill(const coluber::SsdPrefillCudaArgs* args,
                                                        coluber::CudaStream stream) {
  using namespace coluber;
  if (args->activations != DType::kBFloat16) return "activations of another type than bfloat16";
  if (args->num_groups < 1 || args->num_heads > 65535 || args->num_heads % args->num_groups != 0)
    return "sizes that do not fit together";
  if (args->dt_type == DType::kFloat32) return prefill<float>(*args, stream);
  if (args->dt_type == DType::kBFloat16) return prefill<__nv_bfloat16>(*args, stream);
  return "time steps of another type than float32 and bfloat16";
}
