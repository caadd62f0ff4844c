// SPDX-License-Identifier: Apache-2.0
// Mamba-1's scan over packed rows on the device, token by token: a thread holds a channel's N states in registers from
// the row's first token to its last. The lane order is the processor's, in which 16 threads meet a line of memory.
#include "kernels/cuda_operation.cuh"
#include "kernels/scan/selective_scan.h"

namespace coluber {
namespace {

constexpr int kThreads = 64;

// Of a channel's N elements in lane order: the first, and the distance between them.
struct Lane {
  int64_t first, stride;
};
__device__ inline Lane lane_of(const SelectiveScanArgs& args, int64_t channel) {
  const int64_t block = channel / 16 * 16;
  const int64_t width = args.channels - block < 16 ? args.channels - block : 16;
  return {block * args.state_size + channel - block, width};
}

template <int kStates>
__device__ inline void store_lane(const SelectiveScanArgs& args, char* slot, Lane lane, const float (&h)[kStates]) {
#pragma unroll
  for (int n = 0; n < kStates; ++n)
    if (n < args.state_size) store_element(slot, args.state.dtype, lane.first + n * lane.stride, h[n]);
}

template <int kStates>
__global__ void __launch_bounds__(kThreads) scan_rows(const __grid_constant__ SelectiveScanArgs args, bool steps) {
  const int64_t c = blockIdx.x * int64_t{kThreads} + threadIdx.x, row = blockIdx.y;
  if (c >= args.channels) return;
  const int64_t begin = steps ? row : args.query_start_loc[row];
  const int64_t end = steps ? row + 1 : args.query_start_loc[row + 1];
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) {
    for (int64_t t = begin; t < end; ++t) args.y[t * args.y_stride + c] = 0.0f;
    return;
  }
  const Lane lane = lane_of(args, c);
  float h[kStates], a[kStates];
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    const bool there = n < args.state_size;
    h[n] = there ? load_element(slots.source, args.state.dtype, lane.first + n * lane.stride) : 0.0f;
    a[n] = there ? args.a[lane.first + n * lane.stride] : 0.0f;
  }
  const float bias = args.delta_bias != nullptr ? args.delta_bias[c] : 0.0f;
  const float d = args.d != nullptr ? args.d[c] : 0.0f;
  int32_t next = !steps && args.exports.starts != nullptr ? args.exports.starts[row] : 0;
  const int32_t last = !steps && args.exports.starts != nullptr ? args.exports.starts[row + 1] : 0;
  for (int64_t t = begin; t < end; ++t) {
    const float dt = softplus(args.delta[t * args.delta_stride + c] + bias);
    const float x = args.x[t * args.x_stride + c], input = dt * x;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      if (n >= args.state_size) continue;
      h[n] = fmaf(exp2f(dt * a[n]), h[n], input * args.b[t * args.b_stride + n]);
      sum = fmaf(args.c[t * args.c_stride + n], h[n], sum);
    }
    float y = fmaf(d, x, sum);
    if (args.z != nullptr) y *= silu(args.z[t * args.z_stride + c]);
    args.y[t * args.y_stride + c] = y;
    if (next < last && t + 1 - begin == args.exports.offsets[next])
      store_lane(args, slot_at(args.state, args.exports.slots[next++]), lane, h);
  }
  store_lane(args, slots.target, lane, h);
}

CudaStatus scan(const SelectiveScanArgs& args, bool steps, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows > kMostGridRows) return kTooManyRows;
  if (!is_float_state(args.state.dtype)) return kStateOfOtherType;
  const dim3 grid(blocks_of(args.channels, kThreads), static_cast<unsigned>(args.rows));
  if (args.state_size <= 16)
    scan_rows<16><<<grid, kThreads, 0, stream>>>(args, steps);
  else if (args.state_size <= 64)
    scan_rows<64><<<grid, kThreads, 0, stream>>>(args, steps);
  else
    scan_rows<kMaxSelectiveScanState><<<grid, kThreads, 0, stream>>>(args, steps);
  return launch_status();
}

CudaStatus selective_scan_on_device(const SelectiveScanArgs& args, cudaStream_t stream) {
  return scan(args, false, stream);
}
CudaStatus selective_state_update_on_device(const SelectiveScanArgs& args, cudaStream_t stream) {
  return scan(args, true, stream);
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(selective_scan, SelectiveScanArgs, selective_scan_on_device)
COLUBER_CUDA_OPERATION(selective_state_update, SelectiveScanArgs, selective_state_update_on_device)
