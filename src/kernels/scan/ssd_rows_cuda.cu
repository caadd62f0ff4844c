// SPDX-License-Identifier: Apache-2.0
// SSD over packed rows on the device, token by token: a warp holds one line [N] of a head's state in registers from the
// row's first token to its last, so that a prefill has the bits of single steps, however a prompt is cut. The inputs of
// the next token are asked for before the sum over N of this one is closed. Where activations may be rounded, long rows
// go to the tensor cores instead (ssd_prefill_cuda.h).
#include "kernels/gemm/narrow_rows_cuda.cuh"
#include "kernels/scan/ssd.h"
#include "kernels/scan/ssd_prefill_cuda.h"

namespace coluber {
namespace {

constexpr int kWarps = 4;

template <int kItems>
struct Inputs {
  float dt, x, b[kItems], c[kItems];
};

template <int kItems>
__device__ inline Inputs<kItems> inputs_of(const SsdArgs& args, int64_t token, int64_t head, int64_t p, int lane) {
  Inputs<kItems> in;
  const int64_t group = head / (args.num_heads / args.num_groups) * args.state_size;
  in.dt = args.dt[token * args.dt_stride + head];
  in.x = args.x[token * args.x_stride + head * args.head_dim + p];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t n = lane + i * 32;
    const bool there = n < args.state_size;
    in.b[i] = there ? args.b[token * args.b_stride + group + n] : 0.0f;
    in.c[i] = there ? args.c[token * args.c_stride + group + n] : 0.0f;
  }
  return in;
}

template <int kItems>
__device__ inline void store_line(const SsdArgs& args, char* slot, int64_t line, int lane, const float (&s)[kItems]) {
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    if (lane + i * 32 < args.state_size)
      store_element(slot, args.state.dtype, line * args.state_size + lane + i * 32, s[i]);
}

template <int kItems>
__global__ void __launch_bounds__(kWarps * 32) scan_rows(const __grid_constant__ SsdArgs args, bool steps) {
  const int64_t lines = args.num_heads * args.head_dim;
  const int64_t line = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32, row = blockIdx.y;
  if (line >= lines) return;
  const int lane = threadIdx.x % 32;
  const int64_t head = line / args.head_dim, p = line % args.head_dim;
  const int64_t begin = steps ? row : args.query_start_loc[row];
  const int64_t end = steps ? row + 1 : args.query_start_loc[row + 1];
  float* y = args.y + head * args.head_dim + p;
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) {
    for (int64_t t = begin + lane; t < end; t += 32) y[t * args.y_stride] = 0.0f;
    return;
  }
  float s[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t n = lane + i * 32;
    s[i] = n < args.state_size ? load_element(slots.source, args.state.dtype, line * args.state_size + n) : 0.0f;
  }
  const float a = args.a[head], d = args.d != nullptr ? args.d[head] : 0.0f;
  const float bias = args.dt_bias != nullptr ? args.dt_bias[head] : 0.0f;
  int32_t next = !steps && args.exports.starts != nullptr ? args.exports.starts[row] : 0;
  const int32_t last = !steps && args.exports.starts != nullptr ? args.exports.starts[row + 1] : 0;
  Inputs<kItems> in;
  if (begin < end) in = inputs_of<kItems>(args, begin, head, p, lane);
  for (int64_t t = begin; t < end; ++t) {
    const Inputs<kItems> now = in;
    if (t + 1 < end) in = inputs_of<kItems>(args, t + 1, head, p, lane);
    const float dt = fminf(fmaxf(softplus(now.dt + bias), args.dt_min), args.dt_max);
    const float decay = expf(dt * a), input = dt * now.x;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      s[i] = fmaf(decay, s[i], input * now.b[i]);
      sum = fmaf(s[i], now.c[i], sum);
    }
    sum = sum_over_lanes<32>(sum);
    if (lane == 0) y[t * args.y_stride] = fmaf(d, now.x, sum);
    if (next < last && t + 1 - begin == args.exports.offsets[next])
      store_line(args, slot_at(args.state, args.exports.slots[next++]), line, lane, s);
  }
  store_line(args, slots.target, line, lane, s);
}

CudaStatus scan(const SsdArgs& args, bool steps, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows > kMostGridRows) return kTooManyRows;
  if (!is_float_state(args.state.dtype)) return kStateOfOtherType;
  const dim3 grid(blocks_of(args.num_heads * args.head_dim, kWarps), static_cast<unsigned>(args.rows));
  const int threads = kWarps * 32;
  if (args.state_size <= 32)
    scan_rows<1><<<grid, threads, 0, stream>>>(args, steps);
  else if (args.state_size <= 128)
    scan_rows<4><<<grid, threads, 0, stream>>>(args, steps);
  else if (args.state_size <= 256)
    scan_rows<8><<<grid, threads, 0, stream>>>(args, steps);
  else
    scan_rows<kMaxSsdState / 32><<<grid, threads, 0, stream>>>(args, steps);
  return launch_status();
}

// Shorter rows are as fast token by token.
constexpr int64_t kLeastTokens = 32;

bool may_go_by_chunks(const SsdArgs& args) {
  return args.allow_bf16 && !args.state.by_token && args.tokens >= kLeastTokens * args.rows && args.head_dim % 8 == 0 &&
         args.state_size % 8 == 0 && args.state_size <= 128;
}

// The bfloat16 copy of x [T, H, P] becomes y.
CudaStatus scan_chunks(const SsdArgs& args, const CudaLaunch& on) {
  const auto stream = static_cast<cudaStream_t>(on.stream);
  const int64_t width = args.num_heads * args.head_dim, group_width = args.num_groups * args.state_size;
  CudaStatus status = nullptr;
  const auto narrow = [&](const float* from, int64_t stride, int64_t cols) -> __nv_bfloat16* {
    auto* to = static_cast<__nv_bfloat16*>(on.take(on.workspace, args.tokens * cols * 2));
    if (to == nullptr) status = "no scratch memory for activations (out of memory)";
    if (status == nullptr) status = launch_narrow_rows(from, stride, args.tokens, cols, to, stream);
    return to;
  };
  SsdPrefillCudaArgs chunks;
  __nv_bfloat16* x = narrow(args.x, args.x_stride, width);
  chunks.x = chunks.y = x;
  chunks.b = narrow(args.b, args.b_stride, group_width);
  chunks.c = narrow(args.c, args.c_stride, group_width);
  if (status != nullptr) return status;
  chunks.x_stride = chunks.y_stride = width;
  chunks.b_stride = chunks.c_stride = group_width;
  chunks.dt_type = DType::kFloat32;
  chunks.dt = args.dt;
  chunks.dt_stride = args.dt_stride;
  chunks.dt_bias = args.dt_bias;
  chunks.dt_min = args.dt_min;
  chunks.dt_max = args.dt_max;
  chunks.a = args.a;
  chunks.d = args.d;
  chunks.state = args.state;
  chunks.exports = args.exports;
  chunks.query_start_loc = args.query_start_loc;
  chunks.rows = args.rows;
  chunks.num_heads = args.num_heads;
  chunks.head_dim = args.head_dim;
  chunks.num_groups = args.num_groups;
  chunks.state_size = args.state_size;
  status = coluber_cuda_ssd_prefill(&chunks, on.stream);
  return status != nullptr ? status : launch_widen_rows(x, args.tokens, width, args.y, args.y_stride, stream);
}

CudaStatus chunk_scan_on_device(const SsdArgs& args, const CudaLaunch& on) {
  if (args.rows > 0 && may_go_by_chunks(args)) return scan_chunks(args, on);
  return scan(args, false, static_cast<cudaStream_t>(on.stream));
}
CudaStatus state_update_on_device(const SsdArgs& args, cudaStream_t stream) { return scan(args, true, stream); }

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(ssd_chunk_scan, SsdArgs, chunk_scan_on_device)
COLUBER_CUDA_OPERATION(ssd_state_update, SsdArgs, state_update_on_device)
