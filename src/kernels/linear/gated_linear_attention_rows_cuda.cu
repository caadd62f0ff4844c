// SPDX-License-Identifier: Apache-2.0
// Gated linear attention over packed rows on the device, token by token: a warp holds some value channels of a head's
// state in registers, key channels over its lanes, from the row's first token to its last, so that a prefill has the
// bits of single steps, however a prompt is cut. The inputs of the next token are asked for before the sums over K of
// this one are closed.
#include "kernels/cuda_operation.cuh"
#include "kernels/linear/gated_linear_attention.h"

namespace coluber {
namespace {

constexpr int kWarps = 4;

template <int kItems, int kColumns>
struct Inputs {
  float q[kItems], k[kItems], a[kItems], v[kColumns];
};

// Where a warp's part of a state is: key channels lane, lane + 32, ...; columns `column` to `column` + `columns`.
struct Part {
  int64_t head, kv_head, column;
  int columns, lane;
};

template <int kItems, int kColumns>
__device__ inline Inputs<kItems, kColumns> inputs_of(const GatedLinearAttentionArgs& args, const Part& part,
                                                     int64_t token, float constant) {
  Inputs<kItems, kColumns> in;
  const float* q = args.q + token * args.q_stride + part.head * args.q_head_stride;
  const float* k = args.k + token * args.k_stride + part.kv_head * args.k_head_stride;
  const float* v = args.v + token * args.v_stride + part.kv_head * args.v_head_stride + part.column;
  const float* decay =
      args.decay != nullptr ? args.decay + token * args.decay_stride + part.kv_head * args.key_dim : nullptr;
  const float factor =
      args.log_decay != nullptr ? expf(args.log_decay[token * args.decay_stride + part.kv_head]) : constant;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t n = part.lane + i * 32;
    const bool there = n < args.key_dim;
    in.q[i] = there ? q[n] : 0.0f;
    in.k[i] = there ? k[n] : 0.0f;
    in.a[i] = decay != nullptr && there ? decay[n] : factor;
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) in.v[j] = j < part.columns ? v[j] : 0.0f;
  return in;
}

template <int kItems, int kColumns>
__device__ inline void store_part(const GatedLinearAttentionArgs& args, const Part& part, char* slot,
                                  const float (&s)[kItems][kColumns]) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t n = part.lane + i * 32;
    if (n >= args.key_dim) break;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      if (j < part.columns)
        store_element(slot, args.state.dtype, (part.head * args.key_dim + n) * args.value_dim + part.column + j,
                      s[i][j]);
  }
}

template <int kItems, int kColumns>
__global__ void __launch_bounds__(kWarps * 32)
    attend_rows(const __grid_constant__ GatedLinearAttentionArgs args, bool steps) {
  Part part;
  part.lane = threadIdx.x % 32;
  part.head = blockIdx.y;
  part.kv_head = part.head / args.group;
  part.column = (blockIdx.x * int64_t{kWarps} + threadIdx.x / 32) * kColumns;
  if (part.column >= args.value_dim) return;
  part.columns = args.value_dim - part.column < kColumns ? static_cast<int>(args.value_dim - part.column) : kColumns;
  const int64_t row = blockIdx.z;
  const int64_t begin = steps ? row : args.query_start_loc[row];
  const int64_t end = steps ? row + 1 : args.query_start_loc[row + 1];
  float* o = args.o + part.head * args.value_dim + part.column;
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) {
    for (int64_t t = begin; t < end; ++t)
      if (part.lane < part.columns) o[t * args.o_stride + part.lane] = 0.0f;
    return;
  }
  float s[kItems][kColumns];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t n = part.lane + i * 32;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      s[i][j] = n < args.key_dim && j < part.columns
                    ? load_element(slots.source, args.state.dtype,
                                   (part.head * args.key_dim + n) * args.value_dim + part.column + j)
                    : 0.0f;
  }
  const float constant = args.slopes != nullptr ? expf(-args.slopes[part.head]) : 1.0f;
  const bool exports = !steps && args.exports.starts != nullptr;
  int32_t next = exports ? args.exports.starts[row] : 0;
  const int32_t last = exports ? args.exports.starts[row + 1] : 0;
  Inputs<kItems, kColumns> in;
  if (begin < end) in = inputs_of<kItems, kColumns>(args, part, begin, constant);
  for (int64_t t = begin; t < end; ++t) {
    const Inputs<kItems, kColumns> now = in;
    if (t + 1 < end) in = inputs_of<kItems, kColumns>(args, part, t + 1, constant);
    float sum[kColumns] = {};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        s[i][j] = fmaf(now.a[i], s[i][j], now.k[i] * now.v[j]);
        sum[j] = fmaf(now.q[i], s[i][j], sum[j]);
      }
    }
    const float own = sums_to_owners<32>(sum, part.lane);
    const int column = owned_value<32, kColumns>(part.lane);
    if (owns_value<32, kColumns>(part.lane) && column < part.columns) o[t * args.o_stride + column] = args.scale * own;
    if (next < last && t + 1 - begin == args.exports.offsets[next])
      store_part(args, part, slot_at(args.state, args.exports.slots[next++]), s);
  }
  store_part(args, part, slots.target, s);
}

template <int kItems, int kColumns>
void launch(const GatedLinearAttentionArgs& args, bool steps, cudaStream_t stream) {
  const dim3 grid(blocks_of(args.value_dim, kWarps * kColumns), static_cast<unsigned>(args.num_heads),
                  static_cast<unsigned>(args.rows));
  attend_rows<kItems, kColumns><<<grid, kWarps * 32, 0, stream>>>(args, steps);
}

CudaStatus attend(const GatedLinearAttentionArgs& args, bool steps, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows > kMostGridRows || args.num_heads > kMostGridRows) return kTooManyRows;
  if (!is_float_state(args.state.dtype)) return kStateOfOtherType;
  if (args.key_dim <= 32)
    launch<1, 8>(args, steps, stream);
  else if (args.key_dim <= 64)
    launch<2, 8>(args, steps, stream);
  else if (args.key_dim <= 128)
    launch<4, 8>(args, steps, stream);
  else if (args.key_dim <= 256)
    launch<8, 4>(args, steps, stream);
  else
    launch<kMaxLinearKeyDim / 32, 1>(args, steps, stream);
  return launch_status();
}

CudaStatus rows_on_device(const GatedLinearAttentionArgs& args, cudaStream_t stream) {
  return attend(args, false, stream);
}
CudaStatus update_on_device(const GatedLinearAttentionArgs& args, cudaStream_t stream) {
  return attend(args, true, stream);
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(gated_linear_attention, GatedLinearAttentionArgs, rows_on_device)
COLUBER_CUDA_OPERATION(gated_linear_attention_update, GatedLinearAttentionArgs, update_on_device)
