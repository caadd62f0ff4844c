// SPDX-License-Identifier: Apache-2.0
// Attention over paged keys and values on the device: a warp has one query head of one token and walks its keys in
// ascending order with an online softmax, so that a result does not depend on the rows beside it. A first, plain form:
// keys are read once a query head.
#include "kernels/attention/paged_attention.h"
#include "kernels/attention/store_kv.h"
#include "kernels/cuda_operation.cuh"

namespace coluber {
namespace {

constexpr int kWarps = 4;
constexpr int kMostItems = 20;
constexpr int64_t kMostHeadDim = kMostItems * 32;  // a latent of 512 beside a turned part of 64 is 576

// The row that token `t` is of; -1 behind the last one.
__device__ inline int64_t row_of(const int32_t* starts, int64_t rows, int64_t t) {
  if (rows == 0 || t >= starts[rows]) return -1;
  int64_t low = 0, high = rows;  // starts[low] <= t < starts[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (starts[middle] <= t ? low : high) = middle;
  }
  return low;
}

// Elements of a head's row that a lane has: kItems, 32 apart.
template <int kItems>
__device__ inline void load_row(const std::byte* row, DType dtype, int64_t dim, int lane, float (&to)[kItems]) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) to[i] = lane + i * 32 < dim ? load_element(row, dtype, lane + i * 32) : 0.0f;
}

template <int kItems>
__global__ void __launch_bounds__(kWarps * 32) attend(const __grid_constant__ PagedAttentionArgs args, int64_t block,
                                                      int64_t token_bytes, int64_t head_bytes, int64_t plane_bytes) {
  const int64_t pair = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (pair >= args.num_tokens * args.num_heads) return;
  const int64_t t = pair / args.num_heads, head = pair % args.num_heads, dim = args.kv.head_dim;
  const int lane = threadIdx.x % 32;
  float q[kItems], sum[kItems] = {}, most = -INFINITY, weight = 0.0f;
  float* out = args.out + t * args.out_stride + head * dim;
  const int64_t row = row_of(args.query_start_loc, args.num_reqs, t);
  if (row >= 0) {
    const int64_t position = args.seq_lens[row] - args.query_start_loc[row + 1] + t;
    load_row(reinterpret_cast<const std::byte*>(args.q + t * args.q_stride + head * dim), DType::kFloat32, dim, lane,
             q);
    const int64_t group_bytes = head / (args.num_heads / args.kv.num_kv_heads) * head_bytes;
    const int64_t first = args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
    for (int64_t j = first; j <= position; ++j) {
      const int32_t page = args.block_table.data[row * args.block_table.stride + j / block];
      if (page <= kNullBlockId) continue;
      const std::byte* key = args.kv.base + page * args.kv.page_stride_bytes + j % block * token_bytes + group_bytes;
      float values[kItems];
      load_row(key, args.kv.dtype, dim, lane, values);
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < kItems; ++i) score = fmaf(q[i], values[i], score);
      score = sum_over_lanes<32>(score) * args.scale;
      load_row(key + plane_bytes, args.kv.dtype, dim, lane, values);
      const float next = fmaxf(most, score), keep = expf(most - next), p = expf(score - next);
      weight = fmaf(weight, keep, p);
#pragma unroll
      for (int i = 0; i < kItems; ++i) sum[i] = fmaf(sum[i], keep, p * values[i]);
      most = next;
    }
  }
  const bool any = most > -INFINITY || most != most || weight != 0.0f;
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    if (lane + i * 32 < dim) out[lane + i * 32] = any ? sum[i] / weight : 0.0f;
}

CudaStatus attention_on_device(const PagedAttentionArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return nullptr;
  if (args.selection.block_size > 0 || args.bias != nullptr)
    return "chosen keys and biases of scores do not run on the device";
  if (!is_float_state(args.kv.dtype))
    return "pages of this type do not run on the device (floating types of 16 bits and more do)";
  if (args.kv.head_dim > kMostHeadDim) return "heads of more than 640 elements do not run on the device";
  const unsigned blocks = blocks_of(args.num_tokens * args.num_heads, kWarps);
  const int64_t block = args.kv.block_size, token = args.kv.token_bytes(), head = args.kv.head_bytes(),
                plane = args.kv.plane_bytes();
  if (args.kv.head_dim <= 64)
    attend<2><<<blocks, kWarps * 32, 0, stream>>>(args, block, token, head, plane);
  else if (args.kv.head_dim <= 128)
    attend<4><<<blocks, kWarps * 32, 0, stream>>>(args, block, token, head, plane);
  else if (args.kv.head_dim <= 256)
    attend<8><<<blocks, kWarps * 32, 0, stream>>>(args, block, token, head, plane);
  else
    attend<kMostItems><<<blocks, kWarps * 32, 0, stream>>>(args, block, token, head, plane);
  return launch_status();
}

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    store_rows(const __grid_constant__ StoreKvArgs args, int64_t token_bytes, int64_t plane_bytes) {
  const int64_t width = args.kv.num_kv_heads * args.kv.head_dim;
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= args.num_tokens * width) return;
  const int64_t t = i / width, c = i % width, slot = args.slot_mapping[t];
  if (slot < 0) return;
  std::byte* row =
      args.kv.base + slot / args.kv.block_size * args.kv.page_stride_bytes + slot % args.kv.block_size * token_bytes;
  store_element(row, args.kv.dtype, c, args.k[t * args.k_stride + c]);
  if (!args.kv.shared_values) store_element(row + plane_bytes, args.kv.dtype, c, args.v[t * args.v_stride + c]);
}

CudaStatus store_on_device(const StoreKvArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return nullptr;
  if (!is_float_state(args.kv.dtype))
    return "pages of this type do not run on the device (floating types of 16 bits and more do)";
  const int64_t elements = args.num_tokens * args.kv.num_kv_heads * args.kv.head_dim;
  store_rows<<<blocks_of(elements, kThreads), kThreads, 0, stream>>>(args, args.kv.token_bytes(),
                                                                     args.kv.plane_bytes());
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(paged_attention, PagedAttentionArgs, attention_on_device)
COLUBER_CUDA_OPERATION(store_kv, StoreKvArgs, store_on_device)
