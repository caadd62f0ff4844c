// SPDX-License-Identifier: Apache-2.0
// A warp takes a few rows of one head's state. It asks for all of them before anything else is read, so that the small
// inputs arrive while the state is on its way; each row then lives in registers between its one load and its one store,
// and the sums over N close with shuffles. Plain loads and stores: hints to bypass a cache cost 1 to 2 % (measured),
// copies through shared memory by the bulk engine 4 to 35 %.
#include "kernels/cuda_states.cuh"
#include "kernels/scan/ssd_cuda.h"

namespace coluber {
namespace {

// What all rows of a head share.
struct Head {
  float dt, decay, d;
};

template <typename T>
__device__ inline Head head_of(const SsdCudaArgs& args, int64_t row, int head) {
  float dt = to_float(static_cast<const T*>(args.dt)[row * args.dt_stride + head]);
  if (args.dt_bias != nullptr) dt += args.dt_bias[head];
  dt = fminf(fmaxf(softplus(dt), args.dt_min), args.dt_max);
  return {dt, expf(dt * args.a[head]), args.d != nullptr ? args.d[head] : 0.0f};
}

template <typename L, typename T, int kPasses, int kWarps>
__global__ void __launch_bounds__(kWarps * 32)
    update_rows(const __grid_constant__ SsdCudaArgs args, SmallDivisor heads_of_group) {
  const LinesOfWarp<L, kPasses, kWarps> mine(args.head_dim);
  const int lane = mine.lane, n_dim = static_cast<int>(args.state_size);
  const int64_t row = blockIdx.z, line = mine.head * args.head_dim;
  const RowSlots slots = row_slots(args.state, row);
  T* y = static_cast<T*>(args.y) + row * args.y_stride + line;
  if (slots.target == nullptr) return zero_lines(mine, y);

  typename L::Asked asked[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i)
    asked[i] = L::ask(mine.there(i) ? slots.source : nullptr, args.scale_offset_bytes, line + mine.at(i), n_dim, lane);
  wait_for_grid_before();
  let_next_grid_start();
  float b[L::kCount], c[L::kCount];
  const int64_t group = heads_of_group.divide(mine.head) * args.state_size;
  L::spread(static_cast<const T*>(args.b) + row * args.b_stride + group, n_dim, lane, b);
  L::spread(static_cast<const T*>(args.c) + row * args.c_stride + group, n_dim, lane, c);
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride + line;
  float in[kPasses], sum[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) in[i] = mine.there(i) ? to_float(x[mine.at(i)]) : 0.0f;
  const float own_in = mine.closes() ? to_float(x[mine.at(mine.own_pass())]) : 0.0f;
  const Head h = head_of<T>(args, row, mine.head);
  put_lines(mine, slots.target, args.scale_offset_bytes, line, n_dim, [&](int i, float(&s)[L::kCount]) {
    const float dtx = in[i] * h.dt;
    sum[i] = 0.0f;
    L::take(asked[i], n_dim, lane, s);
#pragma unroll
    for (int j = 0; j < L::kCount; ++j) {
      s[j] = fmaf(h.decay, s[j], dtx * b[j]);
      sum[i] = fmaf(s[j], c[j], sum[i]);
    }
  });
  const float own = sums_to_owners<L::kLanes>(sum, lane);
  if (mine.closes()) y[mine.at(mine.own_pass())] = from_float<T>(fmaf(h.d, own_in, own));
}

template <typename S, typename T>
void launch(const SsdCudaArgs& args, cudaStream_t stream) {
  const bool whole = slots_are_aligned(args.state) && inputs_are_aligned<T>(args.b, args.b_stride) &&
                     inputs_are_aligned<T>(args.c, args.c_stride);
  with_lines<S, kMaxSsdCudaState / 32>(whole, args.state_size, [&](auto lines) {
    using L = decltype(lines);
    // Rows a warp and warps a block, by what was fastest at Nemotron-H's sizes and 256 rows (bench/gpu/README.md).
    constexpr bool kFour = std::is_same_v<S, __nv_bfloat16> || std::is_same_v<S, int8_t>;
    constexpr int kPasses = passes_of<L>(kFour ? 4 : 8), kWarps = std::is_same_v<S, float> ? 1 : 2;
    launch_grid(args.overlap != 0, update_rows<L, T, kPasses, kWarps>,
                LinesOfWarp<L, kPasses, kWarps>::grid(args.head_dim, args.num_heads, args.rows), kWarps * 32, 0, stream,
                args, SmallDivisor(args.num_heads / args.num_groups));
  });
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_ssd_state_update(const coluber::SsdCudaArgs* args,
                                                             coluber::CudaStream stream) {
  using namespace coluber;
  if (args->rows == 0) return nullptr;
  if (args->rows < 0 || args->rows > 65535 || args->num_groups < 1 || args->num_heads > 65535 ||
      args->num_heads % args->num_groups != 0)
    return "sizes that do not fit together";
  return with_activations(args->activations, [&](auto t) {
    return with_state_type(args->state.dtype,
                           [&](auto s) { launch<decltype(s), decltype(t)>(*args, static_cast<cudaStream_t>(stream)); });
  });
}
