// SPDX-License-Identifier: Apache-2.0
// As ssd_state_update_cuda.cu: a warp asks for a few lines (value channels) of one head's state before anything else
// and keeps them in registers. One sweep is enough: with k- = exp(g) k and q- = exp(g) q the old state gives S k- and S
// q- at once, u follows, and y = S q- + (k . q) u, so no line waits for another one's sum.
#include "kernels/cuda_states.cuh"
#include "kernels/delta/delta_rule_cuda.h"

namespace coluber {
namespace {

// exp(g) of one gate.
__device__ inline float decay_of(const DeltaRuleCudaArgs& args, float gate, float rate) {
  if (args.gate_lower_bound != 0.0f) return expf(args.gate_lower_bound * sigmoid(rate * gate));
  return expf(-rate * softplus(gate));
}

template <typename L, typename T>
__device__ inline void load_decays(const DeltaRuleCudaArgs& args, int64_t row, int head, int lane,
                                   float (&decay)[L::kCount]) {
  const int size = static_cast<int>(args.key_dim);
  if (args.gate == nullptr) {
#pragma unroll
    for (float& d : decay) d = 1.0f;
    return;
  }
  const T* gates = static_cast<const T*>(args.gate) + row * args.gate_stride;
  const float rate = args.gate_rate[head];
  if (args.gate_per_channel == 0) {
    const float bias = args.gate_bias == nullptr ? 0.0f : args.gate_bias[head];
    const float d = decay_of(args, to_float(gates[head]) + bias, rate);
#pragma unroll
    for (int j = 0; j < L::kCount; ++j) decay[j] = d;
    return;
  }
  float bias[L::kCount] = {};
  L::spread(gates + head * args.key_dim, size, lane, decay);
  if (args.gate_bias != nullptr) L::spread(args.gate_bias + head * args.key_dim, size, lane, bias);
#pragma unroll
  for (int j = 0; j < L::kCount; ++j) decay[j] = decay_of(args, decay[j] + bias[j], rate);
}

// The sum over the lanes of a line.
template <typename L>
__device__ inline float dot(const float (&a)[L::kCount], const float (&b)[L::kCount]) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < L::kCount; ++j) sum = fmaf(a[j], b[j], sum);
  return sum_over_lanes<L::kLanes>(sum);
}

template <typename L>
__device__ inline void normalize(float (&x)[L::kCount], float eps, float scale) {
  if (eps > 0.0f) scale *= rsqrtf(dot<L>(x, x) + eps);
#pragma unroll
  for (float& element : x) element *= scale;
}

template <typename L, typename T, int kPasses, int kWarps>
__global__ void __launch_bounds__(kWarps * 32)
    update_rows(const __grid_constant__ DeltaRuleCudaArgs args, SmallDivisor v_heads_of_key) {
  const LinesOfWarp<L, kPasses, kWarps> mine(args.value_dim);
  const int lane = mine.lane, size = static_cast<int>(args.key_dim);
  const int64_t row = blockIdx.z, line = mine.head * args.value_dim;
  const RowSlots slots = row_slots(args.state, row);
  T* y = static_cast<T*>(args.y) + row * args.y_stride + line;
  if (slots.target == nullptr) return zero_lines(mine, y);

  typename L::Asked asked[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i)
    asked[i] = L::ask(mine.there(i) ? slots.source : nullptr, args.scale_offset_bytes, line + mine.at(i), size, lane);
  wait_for_grid_before();
  let_next_grid_start();
  float k[L::kCount], q[L::kCount], decay[L::kCount];
  const int64_t key = v_heads_of_key.divide(mine.head) * args.key_dim;
  L::spread(static_cast<const T*>(args.k) + row * args.k_stride + key, size, lane, k);
  L::spread(static_cast<const T*>(args.q) + row * args.q_stride + key, size, lane, q);
  load_decays<L, T>(args, row, mine.head, lane, decay);
  float beta = args.beta_scale;
  if (args.beta != nullptr)
    beta *= sigmoid(to_float(static_cast<const T*>(args.beta)[row * args.beta_stride + mine.head]));
  const T* v = static_cast<const T*>(args.v) + row * args.v_stride + line;
  const float own_in = mine.there(mine.own_pass()) ? to_float(v[mine.at(mine.own_pass())]) : 0.0f;

  normalize<L>(k, args.norm_eps, 1.0f);
  normalize<L>(q, args.norm_eps, args.scale);
  const float kq = dot<L>(k, q);
  float k_decayed[L::kCount], read[kPasses], out[kPasses];
#pragma unroll
  for (int j = 0; j < L::kCount; ++j) {
    k_decayed[j] = decay[j] * k[j];
    q[j] *= decay[j];
  }
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    float s[L::kCount];
    read[i] = out[i] = 0.0f;
    L::take(asked[i], size, lane, s);
#pragma unroll
    for (int j = 0; j < L::kCount; ++j) {
      read[i] = fmaf(s[j], k_decayed[j], read[i]);
      out[i] = fmaf(s[j], q[j], out[i]);
    }
  }
  const float own_u = beta * (own_in - sums_to_owners<L::kLanes>(read, lane));
  put_lines(mine, slots.target, args.scale_offset_bytes, line, size, [&](int i, float(&s)[L::kCount]) {
    const float u = from_owner<L::kLanes, kPasses>(own_u, i);
    L::take(asked[i], size, lane, s);
#pragma unroll
    for (int j = 0; j < L::kCount; ++j) s[j] = fmaf(decay[j], s[j], k[j] * u);
  });
  const float own_out = sums_to_owners<L::kLanes>(out, lane);
  if (mine.closes()) y[mine.at(mine.own_pass())] = from_float<T>(fmaf(kq, own_u, own_out));
}

template <typename S, typename T>
void launch(const DeltaRuleCudaArgs& args, cudaStream_t stream) {
  const bool whole = slots_are_aligned(args.state) && inputs_are_aligned<T>(args.q, args.q_stride) &&
                     inputs_are_aligned<T>(args.k, args.k_stride) &&
                     (args.gate_per_channel == 0 || (inputs_are_aligned<T>(args.gate, args.gate_stride) &&
                                                     inputs_are_aligned<float>(args.gate_bias, 0)));
  with_lines<S, kMaxDeltaCudaKeyDim / 32>(whole, args.key_dim, [&](auto lines) {
    using L = decltype(lines);
    constexpr int kPasses = passes_of<L>(8), kWarps = 1;
    launch_grid(args.overlap != 0, update_rows<L, T, kPasses, kWarps>,
                LinesOfWarp<L, kPasses, kWarps>::grid(args.value_dim, args.num_v_heads, args.rows), kWarps * 32, 0,
                stream, args, SmallDivisor(args.num_v_heads / args.num_k_heads));
  });
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_delta_rule_update(const coluber::DeltaRuleCudaArgs* args,
                                                              coluber::CudaStream stream) {
  using namespace coluber;
  if (args->rows == 0) return nullptr;
  if (args->rows < 0 || args->rows > 65535 || args->num_k_heads < 1 || args->num_v_heads > 65535 ||
      args->num_v_heads % args->num_k_heads != 0 || args->key_dim < 1 || args->key_dim > kMaxDeltaCudaKeyDim)
    return "sizes that do not fit together";
  return with_activations(args->activations, [&](auto t) {
    return with_state_type(args->state.dtype,
                           [&](auto s) { launch<decltype(s), decltype(t)>(*args, static_cast<cudaStream_t>(stream)); });
  });
}
