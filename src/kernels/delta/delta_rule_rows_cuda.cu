// SPDX-License-Identifier: Apache-2.0
// The delta rule over packed rows on the device, token by token: a warp holds kColumns value channels of a head's state
// in registers, key channels over its lanes, from the row's first token to its last, so that a prefill has the bits of
// single steps, however a prompt is cut. One reading of the state a token: the sums over Dk that the new value and the
// output need are closed together, on q and k as they come, and normed behind the sums.
#include "kernels/cuda_operation.cuh"
#include "kernels/delta/delta_rule.h"

namespace coluber {
namespace {

constexpr int kWarps = 4, kColumns = 4;
static_assert(16 % kColumns == 0, "a warp's columns lie in one block of the state's order");

template <int kItems>
struct Inputs {
  float q[kItems], k[kItems], gate[kItems], v[kColumns], beta;
};

// A warp's part of a state: key channels lane, lane + 32, ...; columns `column` to `column` + `columns`.
struct Part {
  int64_t head, key_head, column;
  int columns, lane;
};

// Of the part's first column at key channel `key`; columns are neighbours.
__device__ inline int64_t place_of(const DeltaRuleArgs& args, const Part& part, int64_t key) {
  return part.head * args.value_dim * args.key_dim + delta_state_index(part.column, key, args.value_dim, args.key_dim);
}

template <int kItems>
__device__ inline Inputs<kItems> inputs_of(const DeltaRuleArgs& args, const Part& part, int64_t token) {
  Inputs<kItems> in;
  const float* q = args.q + token * args.q_stride + part.key_head * args.key_dim;
  const float* k = args.k + token * args.k_stride + part.key_head * args.key_dim;
  const float* v = args.v + token * args.v_stride + part.head * args.value_dim + part.column;
  const float* gate = args.gate == nullptr ? nullptr : args.gate + token * args.gate_stride;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t n = part.lane + i * 32;
    const bool there = n < args.key_dim;
    in.q[i] = there ? q[n] : 0.0f;
    in.k[i] = there ? k[n] : 0.0f;
    in.gate[i] = 0.0f;
    if (gate == nullptr) continue;
    if (!args.gate_per_channel)
      in.gate[i] = gate[part.head];
    else if (there)
      in.gate[i] = gate[part.head * args.key_dim + n];
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) in.v[j] = j < part.columns ? v[j] : 0.0f;
  in.beta = args.beta == nullptr ? 0.0f : args.beta[token * args.beta_stride + part.head];
  return in;
}

__device__ inline float decay_of(const DeltaRuleArgs& args, float rate, float x) {
  const float log = args.gate_lower_bound != 0.0f ? args.gate_lower_bound * sigmoid(rate * x) : -rate * softplus(x);
  return expf(log);
}

template <int kItems>
__device__ inline void store_part(const DeltaRuleArgs& args, const Part& part, char* slot,
                                  const float (&s)[kItems][kColumns]) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t n = part.lane + i * 32;
    if (n >= args.key_dim) break;
    const int64_t place = place_of(args, part, n);
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      if (j < part.columns) store_element(slot, args.state.dtype, place + j, s[i][j]);
  }
}

// One token: moves the state on; lane j of the result is the output of column j.
template <int kItems>
__device__ inline float step(const DeltaRuleArgs& args, const Part& part, const Inputs<kItems>& in, float rate,
                             const float (&bias)[kItems], float (&s)[kItems][kColumns]) {
  float sums[2 * kColumns] = {}, squares_q = 0.0f, squares_k = 0.0f, product = 0.0f;
  const bool decays = args.gate != nullptr, by_channel = decays && args.gate_per_channel;
  const float head_decay = decays && !by_channel ? decay_of(args, rate, in.gate[0] + bias[0]) : 1.0f;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const float a = by_channel ? decay_of(args, rate, in.gate[i] + bias[i]) : head_decay;
    squares_q = fmaf(in.q[i], in.q[i], squares_q);
    squares_k = fmaf(in.k[i], in.k[i], squares_k);
    product = fmaf(in.q[i], in.k[i], product);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      s[i][j] *= a;
      sums[j] = fmaf(s[i][j], in.k[i], sums[j]);
      sums[kColumns + j] = fmaf(s[i][j], in.q[i], sums[kColumns + j]);
    }
  }
  const float own = sums_to_owners<32>(sums, part.lane);
  float norm_q = args.scale, norm_k = 1.0f;
  if (args.norm_eps > 0.0f) {
    norm_q *= 1.0f / sqrtf(sum_over_lanes<32>(squares_q) + args.norm_eps);
    norm_k = 1.0f / sqrtf(sum_over_lanes<32>(squares_k) + args.norm_eps);
  }
  product = sum_over_lanes<32>(product) * norm_q * norm_k;
  const float beta = args.beta == nullptr ? args.beta_scale : args.beta_scale * sigmoid(in.beta);
  float y = 0.0f;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const float read = from_owner<32, 2 * kColumns>(own, j) * norm_k;
    const float out = from_owner<32, 2 * kColumns>(own, kColumns + j) * norm_q;
    const float u = beta * (in.v[j] - read), written = u * norm_k;
#pragma unroll
    for (int i = 0; i < kItems; ++i) s[i][j] = fmaf(in.k[i], written, s[i][j]);
    if (part.lane == j) y = fmaf(product, u, out);
  }
  return y;
}

template <int kItems>
__global__ void __launch_bounds__(kWarps * 32) delta_rows(const __grid_constant__ DeltaRuleArgs args) {
  Part part;
  part.lane = threadIdx.x % 32;
  part.head = blockIdx.y;
  part.key_head = part.head / (args.num_v_heads / args.num_k_heads);
  part.column = (blockIdx.x * int64_t{kWarps} + threadIdx.x / 32) * kColumns;
  if (part.column >= args.value_dim) return;
  part.columns = args.value_dim - part.column < kColumns ? static_cast<int>(args.value_dim - part.column) : kColumns;
  const int64_t row = blockIdx.z;
  const int64_t begin = args.query_start_loc == nullptr ? row : args.query_start_loc[row];
  const int64_t end = args.query_start_loc == nullptr ? row + 1 : args.query_start_loc[row + 1];
  float* y = args.y + part.head * args.value_dim + part.column;
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) {
    for (int64_t t = begin; t < end; ++t)
      if (part.lane < part.columns) y[t * args.y_stride + part.lane] = 0.0f;
    return;
  }
  float s[kItems][kColumns], bias[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t n = part.lane + i * 32;
    const int64_t place = n < args.key_dim ? place_of(args, part, n) : 0;
    const int64_t channel = args.gate_per_channel ? part.head * args.key_dim + n : part.head;
    bias[i] = args.gate_bias != nullptr && n < args.key_dim ? args.gate_bias[channel] : 0.0f;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      s[i][j] = n < args.key_dim && j < part.columns ? load_element(slots.source, args.state.dtype, place + j) : 0.0f;
  }
  if (!args.gate_per_channel && args.gate_bias != nullptr) bias[0] = args.gate_bias[part.head];
  const float rate = args.gate != nullptr ? args.gate_rate[part.head] : 0.0f;
  int32_t next = args.exports.starts != nullptr ? args.exports.starts[row] : 0;
  const int32_t last = args.exports.starts != nullptr ? args.exports.starts[row + 1] : 0;
  Inputs<kItems> in;
  if (begin < end) in = inputs_of<kItems>(args, part, begin);
  for (int64_t t = begin; t < end; ++t) {
    const Inputs<kItems> now = in;
    if (t + 1 < end) in = inputs_of<kItems>(args, part, t + 1);
    const float out = step(args, part, now, rate, bias, s);
    if (part.lane < part.columns) y[t * args.y_stride + part.lane] = out;
    if (next < last && t + 1 - begin == args.exports.offsets[next])
      store_part(args, part, slot_at(args.state, args.exports.slots[next++]), s);
  }
  store_part(args, part, slots.target, s);
}

CudaStatus delta_on_device(const DeltaRuleArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows > kMostGridRows || args.num_v_heads > kMostGridRows) return kTooManyRows;
  if (!is_float_state(args.state.dtype)) return kStateOfOtherType;
  const dim3 grid(blocks_of(args.value_dim, kWarps * kColumns), static_cast<unsigned>(args.num_v_heads),
                  static_cast<unsigned>(args.rows));
  const int threads = kWarps * 32;
  if (args.key_dim <= 32)
    delta_rows<1><<<grid, threads, 0, stream>>>(args);
  else if (args.key_dim <= 64)
    delta_rows<2><<<grid, threads, 0, stream>>>(args);
  else if (args.key_dim <= 128)
    delta_rows<4><<<grid, threads, 0, stream>>>(args);
  else if (args.key_dim <= 256)
    delta_rows<8><<<grid, threads, 0, stream>>>(args);
  else
    delta_rows<kMaxDeltaKeyDim / 32><<<grid, threads, 0, stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(delta_rule, DeltaRuleArgs, delta_on_device)
