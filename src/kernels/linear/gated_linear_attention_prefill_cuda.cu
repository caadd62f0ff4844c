// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/gated_linear_attention_prefill_cuda.h"

#include "kernels/decay_chunks_cuda.cuh"

namespace coluber {
namespace {

struct Decays {
  using Raw = float;
  const float *slopes, *log_decay;
  int64_t stride;
  int32_t group;

  __device__ Raw ask(int token, int head) const {
    return slopes != nullptr ? -slopes[head] : log_decay[token * stride + head / group];
  }
  __device__ TokenGate of(Raw raw, int) const { return {raw * 1.44269504f, 1.0f}; }
};

DecayChunks chunks_of(const GatedLinearAttentionPrefillCudaArgs& args) {
  DecayChunks chunks;
  chunks.q = {static_cast<const __nv_bfloat16*>(args.q), args.q_stride, args.q_head_stride, 1};
  chunks.k = {static_cast<const __nv_bfloat16*>(args.k), args.k_stride, args.k_head_stride, args.group};
  chunks.v = {static_cast<const __nv_bfloat16*>(args.v), args.v_stride, args.v_head_stride, args.group};
  chunks.y = static_cast<__nv_bfloat16*>(args.o);
  chunks.y_stride = args.o_stride;
  chunks.scale = args.scale;
  chunks.state = args.state;
  chunks.state_key_stride = args.value_dim;
  chunks.state_value_stride = 1;
  chunks.exports = args.exports;
  chunks.query_start_loc = args.query_start_loc;
  chunks.rows = args.rows;
  chunks.num_heads = static_cast<int32_t>(args.num_heads);
  chunks.key_dim = static_cast<int32_t>(args.key_dim);
  chunks.value_dim = static_cast<int32_t>(args.value_dim);
  return chunks;
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_gated_linear_attention_prefill(
    const coluber::GatedLinearAttentionPrefillCudaArgs* args, coluber::CudaStream stream) {
  using namespace coluber;
  if (args->activations != DType::kBFloat16) return "activations of another type than bfloat16";
  if (args->group < 1 || args->num_heads > 65535 || args->num_heads % args->group != 0)
    return "sizes that do not fit together";
  if ((args->slopes != nullptr) == (args->log_decay != nullptr)) return "one of slopes and log_decay must be there";
  const Decays gate = {args->slopes, args->log_decay, args->decay_stride, static_cast<int32_t>(args->group)};
  return run_chunks(chunks_of(*args), gate, static_cast<cudaStream_t>(stream));
}
