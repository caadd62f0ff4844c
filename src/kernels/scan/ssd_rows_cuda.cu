// SPDX-License-Identifier: Apache-2.0
// SSD over packed rows on the device, token by token: a line [N] of a head's state stays in the registers of a group of
// lanes from the row's first token to its last, spread over them as in the kernel of single steps
// (ssd_state_update_cuda.cu), so that a prefill has that kernel's bits, however a prompt is cut. The inputs of the next
// token are asked for before the sum over N of this one is closed. Where activations may be rounded, long rows go to
// the tensor cores instead (ssd_prefill_cuda.h).
#include "kernels/cuda_states.cuh"
#include "kernels/gemm/narrow_rows_cuda.cuh"
#include "kernels/scan/ssd.h"
#include "kernels/scan/ssd_cuda.h"
#include "kernels/scan/ssd_prefill_cuda.h"

namespace coluber {
namespace {

constexpr int kWarps = 4;

template <typename L>
struct Inputs {
  float dt, x, b[L::kCount], c[L::kCount];
};

template <typename L>
__device__ inline Inputs<L> inputs_of(const SsdArgs& args, int64_t token, int head, int64_t group, int64_t line,
                                      bool there, int lane) {
  Inputs<L> in;
  in.dt = args.dt[token * args.dt_stride + head];
  in.x = there ? args.x[token * args.x_stride + line] : 0.0f;
  L::spread(args.b + token * args.b_stride + group, static_cast<int>(args.state_size), lane, in.b);
  L::spread(args.c + token * args.c_stride + group, static_cast<int>(args.state_size), lane, in.c);
  return in;
}

template <typename L>
__global__ void __launch_bounds__(kWarps * 32)
    scan_rows(const __grid_constant__ SsdArgs args, SmallDivisor heads_of_group) {
  const LinesOfWarp<L, 1, kWarps> mine(args.head_dim);
  const int lane = mine.lane, head = mine.head, n_dim = static_cast<int>(args.state_size);
  const bool there = mine.there(0);
  const int64_t row = blockIdx.z, line = head * args.head_dim + mine.at(0);
  const int64_t begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
  float* y = args.y + line;
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) {
    for (int64_t t = begin + lane; there && t < end; t += L::kLanes) y[t * args.y_stride] = 0.0f;
    return;
  }
  float s[L::kCount];
  L::take(L::ask(there ? slots.source : nullptr, 0, line, n_dim, lane), n_dim, lane, s);
  const float a = args.a[head], d = args.d != nullptr ? args.d[head] : 0.0f;
  const float bias = args.dt_bias != nullptr ? args.dt_bias[head] : 0.0f;
  const int64_t group = heads_of_group.divide(head) * args.state_size;
  int32_t next = args.exports.starts != nullptr ? args.exports.starts[row] : 0;
  const int32_t last = args.exports.starts != nullptr ? args.exports.starts[row + 1] : 0;
  Inputs<L> in;
  if (begin < end) in = inputs_of<L>(args, begin, head, group, line, there, lane);
  for (int64_t t = begin; t < end; ++t) {
    const Inputs<L> now = in;
    if (t + 1 < end) in = inputs_of<L>(args, t + 1, head, group, line, there, lane);
    const float dt = fminf(fmaxf(softplus(now.dt + bias), args.dt_min), args.dt_max);
    const float decay = expf(dt * a), input = dt * now.x;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < L::kCount; ++i) {
      s[i] = fmaf(decay, s[i], input * now.b[i]);
      sum = fmaf(s[i], now.c[i], sum);
    }
    sum = sum_over_lanes<L::kLanes>(sum);
    if (lane == 0 && there) y[t * args.y_stride] = fmaf(d, now.x, sum);
    if (next < last && t + 1 - begin == args.exports.offsets[next]) {
      char* slot = slot_at(args.state, args.exports.slots[next++]);
      if (there) L::put(slot, line, n_dim, lane, 1.0f, s);
    }
  }
  if (there) L::put(slots.target, line, n_dim, lane, 1.0f, s);
}

// Whether lines may be read 16 bytes at a time: the same of a step and of a prompt's part, for bits depend on it.
bool lines_are_aligned(const SsdArgs& args) {
  return slots_are_aligned(args.state) && inputs_are_aligned<float>(args.b, args.b_stride) &&
         inputs_are_aligned<float>(args.c, args.c_stride);
}

CudaStatus scan(const SsdArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows > kMostGridRows || args.num_heads > kMostGridRows) return kTooManyRows;
  if (!is_float_state(args.state.dtype)) return kStateOfOtherType;
  return with_state_type(args.state.dtype, [&](auto s) {
    using S = decltype(s);
    if constexpr (!kScaled<S>) {
      with_lines<S, kMaxSsdState / 32>(lines_are_aligned(args), args.state_size, [&](auto lines) {
        using L = decltype(lines);
        const dim3 grid = LinesOfWarp<L, 1, kWarps>::grid(args.head_dim, args.num_heads, args.rows);
        scan_rows<L><<<grid, kWarps * 32, 0, stream>>>(args, SmallDivisor(args.num_heads / args.num_groups));
      });
    }
  });
}

// What single steps and chunks have under the same names; time steps stay float32.
template <typename Args>
Args common_of(const SsdArgs& args) {
  Args common;
  common.dt = args.dt;
  common.dt_stride = args.dt_stride;
  common.dt_bias = args.dt_bias;
  common.dt_min = args.dt_min;
  common.dt_max = args.dt_max;
  common.a = args.a;
  common.d = args.d;
  common.state = args.state;
  common.rows = args.rows;
  common.num_heads = args.num_heads;
  common.head_dim = args.head_dim;
  common.num_groups = args.num_groups;
  common.state_size = args.state_size;
  return common;
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
  auto chunks = common_of<SsdPrefillCudaArgs>(args);
  __nv_bfloat16* x = narrow(args.x, args.x_stride, width);
  chunks.x = chunks.y = x;
  chunks.b = narrow(args.b, args.b_stride, group_width);
  chunks.c = narrow(args.c, args.c_stride, group_width);
  if (status != nullptr) return status;
  chunks.x_stride = chunks.y_stride = width;
  chunks.b_stride = chunks.c_stride = group_width;
  chunks.dt_type = DType::kFloat32;
  chunks.exports = args.exports;
  chunks.query_start_loc = args.query_start_loc;
  status = coluber_cuda_ssd_prefill(&chunks, on.stream);
  return status != nullptr ? status : launch_widen_rows(x, args.tokens, width, args.y, args.y_stride, stream);
}

CudaStatus chunk_scan_on_device(const SsdArgs& args, const CudaLaunch& on) {
  if (args.rows > 0 && may_go_by_chunks(args)) return scan_chunks(args, on);
  return scan(args, static_cast<cudaStream_t>(on.stream));
}

CudaStatus state_update_on_device(const SsdArgs& args, cudaStream_t stream) {
  if (!is_float_state(args.state.dtype)) return kStateOfOtherType;
  auto step = common_of<SsdCudaArgs>(args);
  step.activations = DType::kFloat32;
  step.x = args.x;
  step.x_stride = args.x_stride;
  step.b = args.b;
  step.b_stride = args.b_stride;
  step.c = args.c;
  step.c_stride = args.c_stride;
  step.y = args.y;
  step.y_stride = args.y_stride;
  return coluber_cuda_ssd_state_update(&step, stream);
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(ssd_chunk_scan, SsdArgs, chunk_scan_on_device)
COLUBER_CUDA_OPERATION(ssd_state_update, SsdArgs, state_update_on_device)
