// SPDX-License-Identifier: Apache-2.0
// A block takes some value channels of one head, 128 bytes of each key's line, eight lanes a line; a thread asks for
// kBatch lines before anything else. q, k and the decays lie in shared memory meanwhile, and the sums over K close
// there.
#include "kernels/cuda_states.cuh"
#include "kernels/linear/gated_linear_attention_cuda.h"

namespace coluber {
namespace {

constexpr int kThreads = 128, kLanes = 8, kKeysTogether = kThreads / kLanes, kBatch = 8;

template <typename T>
__device__ inline void load_keys(const GatedLinearAttentionCudaArgs& args, int64_t row, int head, int kv_head, float* q,
                                 float* k, float* a) {
  const T* q_of = static_cast<const T*>(args.q) + row * args.q_stride + head * args.q_head_stride;
  const T* k_of = static_cast<const T*>(args.k) + row * args.k_stride + kv_head * args.k_head_stride;
  float factor = 1.0f;
  if (args.slopes != nullptr) factor = expf(-args.slopes[head]);
  if (args.log_decay != nullptr) factor = expf(args.log_decay[row * args.decay_stride + kv_head]);
  for (int i = threadIdx.x; i < args.key_dim; i += kThreads) {
    q[i] = args.scale * to_float(q_of[i]);
    k[i] = to_float(k_of[i]);
    a[i] = args.decay != nullptr ? args.decay[row * args.decay_stride + kv_head * args.key_dim + i] : factor;
  }
}

// Over the four keys of a warp, then over the four warps by way of sums [4][kLanes][kVector]; the block's first lanes
// have the result.
template <int kVector>
__device__ inline void sum_over_keys(float* sums, float (&sum)[kVector]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], 8);
    sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], 16);
    if (threadIdx.x % 32 < kLanes) sums[(threadIdx.x / 32 * kLanes + lane) * kVector + j] = sum[j];
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    sum[j] = 0.0f;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) sum[j] += sums[(w * kLanes + lane) * kVector + j];
  }
}

template <typename S, typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    update_columns(const __grid_constant__ GatedLinearAttentionCudaArgs args, SmallDivisor heads_of_kv) {
  extern __shared__ float shared[];  // q, k, a [K] each, then sums [4][kLanes * kVector]
  const int k_dim = static_cast<int>(args.key_dim), v_dim = static_cast<int>(args.value_dim);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, key = static_cast<int>(threadIdx.x) / kLanes;
  const int head = static_cast<int>(blockIdx.y), kv_head = heads_of_kv.divide(head);
  const int column = (static_cast<int>(blockIdx.x) * kLanes + lane) * kVector;
  const bool there = column < v_dim;
  const int64_t row = blockIdx.z, state_of_head = static_cast<int64_t>(head) * k_dim * v_dim + column;
  const RowSlots slots = row_slots(args.state, row);
  T* o = static_cast<T*>(args.o) + row * args.o_stride + static_cast<int64_t>(head) * v_dim + column;
  if (slots.target == nullptr) {
    wait_for_grid_before();
    for (int i = 0; i < kVector && key == 0 && there; ++i) o[i] = from_float<T>(0.0f);
    return;
  }
  float *q = shared, *k = q + k_dim, *a = k + k_dim, *sums = a + k_dim;
  float v[kVector] = {}, sum[kVector] = {};
  for (int begin = 0; begin < k_dim; begin += kKeysTogether * kBatch) {
    float s[kBatch][kVector];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int n = begin + i * kKeysTogether + key;
#pragma unroll
      for (float& element : s[i]) element = 0.0f;
      if (slots.source != nullptr && there && n < k_dim)
        load_some(reinterpret_cast<const S*>(slots.source) + state_of_head + static_cast<int64_t>(n) * v_dim, s[i]);
    }
    if (begin == 0) {
      wait_for_grid_before();
      let_next_grid_start();
      load_keys<T>(args, row, head, kv_head, q, k, a);
      const T* v_of = static_cast<const T*>(args.v) + row * args.v_stride + kv_head * args.v_head_stride;
      for (int i = 0; i < kVector && there; ++i) v[i] = to_float(v_of[column + i]);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int n = begin + i * kKeysTogether + key;
      if (n >= k_dim) break;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        s[i][j] = fmaf(a[n], s[i][j], k[n] * v[j]);
        sum[j] = fmaf(q[n], s[i][j], sum[j]);
      }
      if (there) store_some(reinterpret_cast<S*>(slots.target) + state_of_head + static_cast<int64_t>(n) * v_dim, s[i]);
    }
  }
  sum_over_keys(sums, sum);
  if (key != 0 || !there) return;
#pragma unroll
  for (int j = 0; j < kVector; ++j) o[j] = from_float<T>(sum[j]);
}

template <typename S, typename T, int kVector>
void launch_columns(const GatedLinearAttentionCudaArgs& args, cudaStream_t stream) {
  constexpr int kColumns = kLanes * kVector;
  const dim3 grid(static_cast<unsigned>((args.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(args.num_heads), static_cast<unsigned>(args.rows));
  const size_t bytes = sizeof(float) * (3 * static_cast<size_t>(args.key_dim) + kThreads / 32 * kColumns);
  launch_grid(args.overlap != 0, update_columns<S, T, kVector>, grid, kThreads, bytes, stream, args,
              SmallDivisor(args.group));
}

template <typename S, typename T>
void launch(const GatedLinearAttentionCudaArgs& args, cudaStream_t stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(S));
  if (slots_are_aligned(args.state) && args.value_dim % kVector == 0)
    return launch_columns<S, T, kVector>(args, stream);
  launch_columns<S, T, 1>(args, stream);
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_gated_linear_attention_update(
    const coluber::GatedLinearAttentionCudaArgs* args, coluber::CudaStream stream) {
  using namespace coluber;
  if (args->rows == 0) return nullptr;
  if (args->rows < 0 || args->rows > 65535 || args->group < 1 || args->num_heads > 65535 ||
      args->num_heads % args->group != 0 || args->key_dim < 1 || args->key_dim > kMaxLinearCudaKeyDim)
    return "sizes that do not fit together";
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  return with_activations(args->activations, [&](auto t) -> CudaStatus {
    using T = decltype(t);
    if (args->state.dtype == DType::kFloat32) {
      launch<float, T>(*args, cuda_stream);
    } else if (args->state.dtype == DType::kBFloat16) {
      launch<__nv_bfloat16, T>(*args, cuda_stream);
    } else if (args->state.dtype == DType::kFloat16) {
      launch<__half, T>(*args, cuda_stream);
    } else {
      return "a state of this type (float32, bfloat16 and float16 are computed)";
    }
    return launch_status();
  });
}
