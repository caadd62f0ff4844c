// SPDX-License-Identifier: Apache-2.0
// As delta_rule_update_cuda.cu: lines in registers, and one sweep of the old state for S a and S (w r), from which
// y = S (w r) + (S a) (b . r) + v (k . r).
#include "kernels/cuda_states.cuh"
#include "kernels/wkv/wkv7_cuda.h"

namespace coluber {
namespace {

template <typename L, typename T, int kPasses, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) update_rows(const __grid_constant__ Wkv7CudaArgs args) {
  const LinesOfWarp<L, kPasses, kWarps> mine(args.head_dim);
  const int lane = mine.lane, size = static_cast<int>(args.head_dim);
  const int64_t row = blockIdx.z, line = mine.head * args.head_dim;
  const int64_t token = row * args.num_heads * args.head_dim + line;
  const RowSlots slots = row_slots(args.state, row);
  T* y = static_cast<T*>(args.y) + token;
  if (slots.target == nullptr) return zero_lines(mine, y);

  typename L::Asked asked[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i)
    asked[i] = L::ask(mine.there(i) ? slots.source : nullptr, args.scale_offset_bytes, line + mine.at(i), size, lane);
  wait_for_grid_before();
  let_next_grid_start();
  float r[L::kCount], w[L::kCount], k[L::kCount], a[L::kCount], b[L::kCount];
  L::spread(static_cast<const T*>(args.r) + token, size, lane, r);
  L::spread(args.w + token, size, lane, w);
  L::spread(static_cast<const T*>(args.k) + token, size, lane, k);
  L::spread(static_cast<const T*>(args.a) + token, size, lane, a);
  L::spread(static_cast<const T*>(args.b) + token, size, lane, b);
  const T* v = static_cast<const T*>(args.v) + token;
  float in[kPasses], read[kPasses], out[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) in[i] = mine.there(i) ? to_float(v[mine.at(i)]) : 0.0f;
  const float own_in = mine.closes() ? to_float(v[mine.at(mine.own_pass())]) : 0.0f;
  float br = 0.0f, kr = 0.0f;
#pragma unroll
  for (int j = 0; j < L::kCount; ++j) {
    br = fmaf(b[j], r[j], br);
    kr = fmaf(k[j], r[j], kr);
    r[j] *= w[j];
  }
  br = sum_over_lanes<L::kLanes>(br);
  kr = sum_over_lanes<L::kLanes>(kr);
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    float s[L::kCount];
    read[i] = out[i] = 0.0f;
    L::take(asked[i], size, lane, s);
#pragma unroll
    for (int j = 0; j < L::kCount; ++j) {
      read[i] = fmaf(s[j], a[j], read[i]);
      out[i] = fmaf(s[j], r[j], out[i]);
    }
  }
  const float own_read = sums_to_owners<L::kLanes>(read, lane);
  put_lines(mine, slots.target, args.scale_offset_bytes, line, size, [&](int i, float(&s)[L::kCount]) {
    const float all = from_owner<L::kLanes, kPasses>(own_read, i);
    L::take(asked[i], size, lane, s);
#pragma unroll
    for (int j = 0; j < L::kCount; ++j) s[j] = fmaf(w[j], s[j], fmaf(all, b[j], in[i] * k[j]));
  });
  const float own_out = sums_to_owners<L::kLanes>(out, lane);
  if (mine.closes()) y[mine.at(mine.own_pass())] = from_float<T>(fmaf(own_read, br, fmaf(own_in, kr, own_out)));
}

template <typename S, typename T>
void launch(const Wkv7CudaArgs& args, cudaStream_t stream) {
  bool whole = slots_are_aligned(args.state) && inputs_are_aligned<float>(args.w, 0);
  for (const void* input : {args.r, args.k, args.a, args.b}) whole = whole && inputs_are_aligned<T>(input, 0);
  with_lines<S, kMaxWkv7CudaHeadDim / 32>(whole, args.head_dim, [&](auto lines) {
    using L = decltype(lines);
    constexpr int kPasses = passes_of<L>(8), kWarps = 1;
    launch_grid(args.overlap != 0, update_rows<L, T, kPasses, kWarps>,
                LinesOfWarp<L, kPasses, kWarps>::grid(args.head_dim, args.num_heads, args.rows), kWarps * 32, 0, stream,
                args);
  });
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_wkv7_update(const coluber::Wkv7CudaArgs* args, coluber::CudaStream stream) {
  using namespace coluber;
  if (args->rows == 0) return nullptr;
  if (args->rows < 0 || args->rows > 65535 || args->num_heads > 65535 || args->head_dim < 1 ||
      args->head_dim > kMaxWkv7CudaHeadDim)
    return "sizes that do not fit together";
  return with_activations(args->activations, [&](auto t) {
    return with_state_type(args->state.dtype,
                           [&](auto s) { launch<decltype(s), decltype(t)>(*args, static_cast<cudaStream_t>(stream)); });
  });
}
