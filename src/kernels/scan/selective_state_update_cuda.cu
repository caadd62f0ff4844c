// SPDX-License-Identifier: Apache-2.0
// A few lanes hold a channel's state, eight channels side by side in a warp where N is 16. `a` is as large as a state
// and the same for every row, so a warp reads it once for a few rows; it asks for the states of all of them before
// anything else. The step, the skip and the gate of a channel are computed by one of its lanes for each row: in all
// lanes they were the larger half of the instructions, which bound this kernel.
#include "kernels/cuda_states.cuh"
#include "kernels/scan/selective_scan_cuda.h"

namespace coluber {
namespace {

// The numbers of one channel and row beside its state.
struct Step {
  float dt = 0.0f, dtx = 0.0f, skip = 0.0f, gate = 1.0f;

  template <typename T>
  __device__ void load(const SelectiveScanCudaArgs& args, int64_t row, int64_t channel) {
    const float x = to_float(static_cast<const T*>(args.x)[row * args.x_stride + channel]);
    const float delta = to_float(static_cast<const T*>(args.delta)[row * args.delta_stride + channel]);
    dt = softplus(delta + (args.delta_bias != nullptr ? args.delta_bias[channel] : 0.0f));
    dtx = dt * x;
    if (args.d != nullptr) skip = args.d[channel] * x;
    if (args.z != nullptr) gate = silu(to_float(static_cast<const T*>(args.z)[row * args.z_stride + channel]));
  }
};

// The slots of the rows from `first` on.
template <int kRows>
struct SlotsOfRows {
  RowSlots slots[kRows];
  __device__ SlotsOfRows(const StateSlots& state, int64_t first, int64_t rows) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      slots[i] = first + i < rows ? row_slots(state, first + i) : RowSlots{nullptr, nullptr};
  }
};

template <typename L, typename T, int kRows, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) update_rows(const __grid_constant__ SelectiveScanCudaArgs args) {
  using S = typename L::Element;
  const int lane = static_cast<int>(threadIdx.x) % L::kLanes, size = static_cast<int>(args.state_size);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * (kWarps * L::kTogether) + threadIdx.x / L::kLanes;
  const bool there = channel < args.channels;
  const int64_t line = there ? channel : 0, first = static_cast<int64_t>(blockIdx.y) * kRows;
  const SlotsOfRows<kRows> rows(args.state, first, args.rows);
  typename L::Asked asked[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) asked[i] = L::ask(rows.slots[i].source, args.scale_offset_bytes, line, size, lane);
  float a[L::kCount];
  L::spread(args.a + line * size, size, lane, a);
  wait_for_grid_before();
  let_next_grid_start();
  const int own = owned_value<L::kLanes, kRows>(lane);
  const bool owns = owns_value<L::kLanes, kRows>(lane) && there && first + own < args.rows;
  Step step;
  if (first + own < args.rows) step.load<T>(args, first + own, line);

  float sum[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    sum[i] = 0.0f;
    const int64_t row = first + i < args.rows ? first + i : first;
    float s[L::kCount], b[L::kCount], c[L::kCount];
    L::take(asked[i], size, lane, s);
    L::spread(static_cast<const T*>(args.b) + row * args.b_stride, size, lane, b);
    L::spread(static_cast<const T*>(args.c) + row * args.c_stride, size, lane, c);
    const float dt = from_owner<L::kLanes, kRows>(step.dt, i), dtx = from_owner<L::kLanes, kRows>(step.dtx, i);
#pragma unroll
    for (int j = 0; j < L::kCount; ++j) {
      s[j] = fmaf(exp2_fast(dt * a[j]), s[j], dtx * b[j]);
      sum[i] = fmaf(s[j], c[j], sum[i]);
    }
    float per_unit = 1.0f;
    const bool stores = there && rows.slots[i].target != nullptr;
    if constexpr (kScaled<S>) {
      const float largest = max_over_lanes<L::kLanes>(largest_of(s));
      if (lane == 0 && stores) scale_of(rows.slots[i].target, args.scale_offset_bytes, line) = unit_of_code<S>(largest);
      per_unit = codes_per_unit<S>(largest);
    }
    if (stores) L::put(rows.slots[i].target, line, size, lane, per_unit, s);
  }
  float y = (sums_to_owners<L::kLanes>(sum, lane) + step.skip) * step.gate;
  if (!owns) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (i == own && rows.slots[i].target == nullptr) y = 0.0f;
  static_cast<T*>(args.y)[(first + own) * args.y_stride + channel] = from_float<T>(y);
}

template <typename L, typename T, int kRows>
void launch_rows(const SelectiveScanCudaArgs& args, cudaStream_t stream) {
  constexpr int kWarps = 4, kChannels = kWarps * L::kTogether;
  const dim3 grid(static_cast<unsigned>((args.channels + kChannels - 1) / kChannels),
                  static_cast<unsigned>((args.rows + kRows - 1) / kRows));
  launch_grid(args.overlap != 0, update_rows<L, T, kRows, kWarps>, grid, kWarps * 32, 0, stream, args);
}

template <typename S, typename T>
void launch(const SelectiveScanCudaArgs& args, cudaStream_t stream) {
  const bool whole = slots_are_aligned(args.state) && inputs_are_aligned<T>(args.b, args.b_stride) &&
                     inputs_are_aligned<T>(args.c, args.c_stride) && inputs_are_aligned<float>(args.a, 0);
  with_lines<S, kMaxSelectiveScanCudaState / 32>(whole, args.state_size, [&](auto lines) {
    using L = decltype(lines);
    // Several rows a warp only where there are blocks enough without them.
    if (args.rows >= 32) return launch_rows<L, T, passes_of<L>(4)>(args, stream);
    launch_rows<L, T, 1>(args, stream);
  });
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_selective_state_update(const coluber::SelectiveScanCudaArgs* args,
                                                                   coluber::CudaStream stream) {
  using namespace coluber;
  if (args->rows == 0) return nullptr;
  if (args->rows < 0 || args->rows > 65535 || args->state_size < 1 || args->state_size > kMaxSelectiveScanCudaState)
    return "sizes that do not fit together";
  return with_activations(args->activations, [&](auto t) {
    return with_state_type(args->state.dtype,
                           [&](auto s) { launch<decltype(s), decltype(t)>(*args, static_cast<cudaStream_t>(stream)); });
  });
}
