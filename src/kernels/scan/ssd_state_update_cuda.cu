// SPDX-License-Identifier: Apache-2.0
// A warp takes a few rows of one head's state. It asks for all of them before anything else is read, so that the small
// inputs arrive while the state is on its way; each row then lives in registers between its one load and its one store,
// and the sums over N close with shuffles. Plain loads and stores: hints to bypass a cache cost 1 to 2 % (measured),
// copies through shared memory by the bulk engine 4 to 35 %.
#include <type_traits>

#include "kernels/cuda_math.cuh"
#include "kernels/scan/ssd_cuda.h"

namespace coluber {
namespace {

template <typename S>
inline constexpr bool kScaled = std::is_same_v<S, int16_t> || std::is_same_v<S, int8_t>;
template <typename S>
inline constexpr float kLargestCode = std::is_same_v<S, int16_t> ? 32767.0f : 127.0f;

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

// The row's slots; null where it has none, and no source where it starts from zeros.
struct Slots {
  const char* source;
  char* target;
};
__device__ inline Slots slots_of(const StateSlots& state, int64_t row) {
  const bool fresh = state.has_initial_state != nullptr && state.has_initial_state[row] == 0;
  const int64_t src = state.src[row * state.index_stride], dst = state.dst[row * state.index_stride];
  char* base = static_cast<char*>(state.base);
  if (dst <= 0 || (!fresh && src <= 0)) return {nullptr, nullptr};
  return {fresh ? nullptr : base + src * state.slot_stride_bytes, base + dst * state.slot_stride_bytes};
}

template <typename S, int kVector>
__device__ inline void load_state(const S* from, float scale, float (&to)[kVector]) {
  load_floats(from, to);
  if constexpr (kScaled<S>) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) to[i] *= scale;
  }
}

template <typename S, int kVector>
__device__ inline void store_state(S* to, float per_scale, float (&from)[kVector]) {
  if constexpr (kScaled<S>) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) from[i] *= per_scale;
  }
  store_floats(to, from);
}

// How a row of N elements lies over lanes: kVectors times 16 bytes a lane, kTogether rows side by side in a warp.
template <typename S, int kN>
struct Lines {
  static constexpr int kVector = 16 / static_cast<int>(sizeof(S));
  static constexpr int kLanes = kN / kVector < 32 ? kN / kVector : 32;
  static constexpr int kVectors = kN / (kVector * kLanes);
  static constexpr int kTogether = 32 / kLanes;
  using Values = float[kVectors][kVector];

  // Line `line` = head * P + p of a state; zeros where there is no source.
  __device__ static void load(const SsdCudaArgs& args, const char* source, int64_t line, int lane, Values& s) {
    if (source == nullptr) {
#pragma unroll
      for (int i = 0; i < kVectors * kVector; ++i) s[i / kVector][i % kVector] = 0.0f;
      return;
    }
    const float scale = kScaled<S> ? reinterpret_cast<const float*>(source + args.scale_offset_bytes)[line] : 1.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      load_state(reinterpret_cast<const S*>(source) + line * kN + (v * kLanes + lane) * kVector, scale, s[v]);
  }

  // All lanes of the row take part, `there` or not.
  __device__ static void store(const SsdCudaArgs& args, char* target, int64_t line, int lane, bool there, Values& s) {
    float per_scale = 1.0f;
    if constexpr (kScaled<S>) {
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < kVectors * kVector; ++i) largest = fmaxf(largest, fabsf(s[i / kVector][i % kVector]));
      largest = max_over_lanes<kLanes>(largest);
      per_scale = largest > 0.0f ? kLargestCode<S> / largest : 0.0f;
      if (lane == 0 && there)
        reinterpret_cast<float*>(target + args.scale_offset_bytes)[line] = largest / kLargestCode<S>;
    }
    if (!there) return;
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      store_state(reinterpret_cast<S*>(target) + line * kN + (v * kLanes + lane) * kVector, per_scale, s[v]);
  }
};

template <typename T>
__device__ inline void zero_line(T* y, int lane, bool there) {
  if (lane == 0 && there) *y = from_float<T>(0.0f);
}

// Each of the kWarps warps of a block has kPasses * kTogether rows of one head.
template <typename S, typename T, int kN, int kPasses, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) update_rows(const __grid_constant__ SsdCudaArgs args, int tiles) {
  using L = Lines<S, kN>;
  const int lane = threadIdx.x % L::kLanes, p_dim = static_cast<int>(args.head_dim);
  const int64_t row = blockIdx.y;
  const int head = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const int first = (tile * kWarps + static_cast<int>(threadIdx.x) / 32) * kPasses * L::kTogether +
                    static_cast<int>(threadIdx.x) % 32 / L::kLanes;
  const auto at = [&](int pass) { return first + pass * L::kTogether; };
  const int64_t line = static_cast<int64_t>(head) * p_dim;

  const Slots slots = slots_of(args.state, row);
  T* y = static_cast<T*>(args.y) + row * args.y_stride + line;
  if (slots.target == nullptr) {
    for (int i = 0; i < kPasses; ++i) zero_line(y + at(i), lane, at(i) < p_dim);
    return;
  }
  typename L::Values s[kPasses], b, c;
#pragma unroll
  for (int i = 0; i < kPasses; ++i) L::load(args, at(i) < p_dim ? slots.source : nullptr, line + at(i), lane, s[i]);
  const Head h = head_of<T>(args, row, head);
  const int64_t group = head / (args.num_heads / args.num_groups) * kN;
#pragma unroll
  for (int v = 0; v < L::kVectors; ++v) {
    const int64_t n = group + (v * L::kLanes + lane) * L::kVector;
    load_floats(static_cast<const T*>(args.b) + row * args.b_stride + n, b[v]);
    load_floats(static_cast<const T*>(args.c) + row * args.c_stride + n, c[v]);
  }
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride + line;
  float sum[kPasses], in[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    in[i] = at(i) < p_dim ? to_float(x[at(i)]) : 0.0f;
    sum[i] = 0.0f;
#pragma unroll
    for (int j = 0; j < L::kVectors * L::kVector; ++j) {
      float& element = s[i][j / L::kVector][j % L::kVector];
      element = fmaf(h.decay, element, in[i] * h.dt * b[j / L::kVector][j % L::kVector]);
      sum[i] = fmaf(element, c[j / L::kVector][j % L::kVector], sum[i]);
    }
    L::store(args, slots.target, line + at(i), lane, at(i) < p_dim, s[i]);
  }
#pragma unroll
  for (int i = 0; i < kPasses; ++i) sum[i] = sum_over_lanes<L::kLanes>(sum[i]);
#pragma unroll
  for (int i = 0; i < kPasses; ++i)
    if (lane == i % L::kLanes && at(i) < p_dim) y[at(i)] = from_float<T>(fmaf(h.d, in[i], sum[i]));
}

// Any N and any alignment: a warp a row, in steps of 32.
template <typename S, typename T>
__global__ void __launch_bounds__(128) update_any(const __grid_constant__ SsdCudaArgs args) {
  const int lane = threadIdx.x % 32;
  const int64_t row = blockIdx.y, p_dim = args.head_dim, n_dim = args.state_size;
  const int64_t line = blockIdx.x * int64_t{4} + threadIdx.x / 32;
  if (line >= args.num_heads * p_dim) return;
  const int head = static_cast<int>(line / p_dim);
  T* y = static_cast<T*>(args.y) + row * args.y_stride + line;
  const Slots slots = slots_of(args.state, row);
  if (slots.target == nullptr) {
    if (lane == 0) *y = from_float<T>(0.0f);
    return;
  }
  const Head h = head_of<T>(args, row, head);
  const int64_t group = head / (args.num_heads / args.num_groups);
  const T* b = static_cast<const T*>(args.b) + row * args.b_stride + group * n_dim;
  const T* c = static_cast<const T*>(args.c) + row * args.c_stride + group * n_dim;
  const float in = to_float(static_cast<const T*>(args.x)[row * args.x_stride + line]);
  const S* from = reinterpret_cast<const S*>(slots.source) + line * n_dim;
  S* to = reinterpret_cast<S*>(slots.target) + line * n_dim;
  float old_scale = 0.0f;
  if (kScaled<S> && slots.source != nullptr)
    old_scale = reinterpret_cast<const float*>(slots.source + args.scale_offset_bytes)[line];
  const auto next = [&](int64_t n) {
    float old = slots.source != nullptr ? to_float(from[n]) : 0.0f;
    if constexpr (kScaled<S>) old *= old_scale;
    return fmaf(h.decay, old, in * h.dt * to_float(b[n]));
  };
  float per_scale = 1.0f;
  if constexpr (kScaled<S>) {
    float largest = 0.0f;
    for (int64_t n = lane; n < n_dim; n += 32) largest = fmaxf(largest, fabsf(next(n)));
    largest = max_over_lanes<32>(largest);
    per_scale = largest > 0.0f ? kLargestCode<S> / largest : 0.0f;
    if (lane == 0) reinterpret_cast<float*>(slots.target + args.scale_offset_bytes)[line] = largest / kLargestCode<S>;
  }
  float sum = 0.0f;
  for (int64_t n = lane; n < n_dim; n += 32) {
    const float s = next(n);
    to[n] = from_float<S>(s * per_scale);
    sum = fmaf(s, to_float(c[n]), sum);
  }
  sum = sum_over_lanes<32>(sum);
  if (lane == 0) *y = from_float<T>(fmaf(h.d, in, sum));
}

bool aligned(const void* pointer, int64_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// Four passes of two warps a block: within 1 % of the best of 1, 2, 4, 8 and 16 passes and 1, 2, 4 and 8 warps at every
// batch measured on an H200 (float32 and bfloat16, N = 128), but for batches of one, where two passes win 4 %.
template <typename S, typename T, int kN>
void launch_rows(const SsdCudaArgs& args, cudaStream_t stream) {
  constexpr int kPasses = sizeof(S) == 1 ? 2 : 4, kWarps = 2, kRows = kPasses * Lines<S, kN>::kTogether * kWarps;
  const int tiles = static_cast<int>((args.head_dim + kRows - 1) / kRows);
  const dim3 grid(static_cast<unsigned>(args.num_heads * tiles), static_cast<unsigned>(args.rows));
  update_rows<S, T, kN, kPasses, kWarps><<<grid, kWarps * 32, 0, stream>>>(args, tiles);
}

template <typename S, typename T>
void launch(const SsdCudaArgs& args, cudaStream_t stream) {
  const bool whole = aligned(args.state.base, 16) && args.state.slot_stride_bytes % 16 == 0 && aligned(args.b, 16) &&
                     aligned(args.c, 16) && args.b_stride * sizeof(T) % 16 == 0 && args.c_stride * sizeof(T) % 16 == 0;
  switch (whole ? args.state_size : 0) {
    case 16:
      return launch_rows<S, T, 16>(args, stream);
    case 32:
      return launch_rows<S, T, 32>(args, stream);
    case 64:
      return launch_rows<S, T, 64>(args, stream);
    case 128:
      return launch_rows<S, T, 128>(args, stream);
    case 256:
      return launch_rows<S, T, 256>(args, stream);
    default: {
      const int64_t lines = args.num_heads * args.head_dim;
      const dim3 grid(static_cast<unsigned>((lines + 3) / 4), static_cast<unsigned>(args.rows));
      update_any<S, T><<<grid, 128, 0, stream>>>(args);
    }
  }
}

template <typename T>
CudaStatus by_state(const SsdCudaArgs& args, cudaStream_t stream) {
  switch (args.state.dtype) {
    case DType::kFloat32:
      launch<float, T>(args, stream);
      break;
    case DType::kBFloat16:
      launch<__nv_bfloat16, T>(args, stream);
      break;
    case DType::kFloat16:
      launch<__half, T>(args, stream);
      break;
    case DType::kInt16:
      launch<int16_t, T>(args, stream);
      break;
    case DType::kInt8:
      launch<int8_t, T>(args, stream);
      break;
    default:
      return "a state of this type (float32, bfloat16, float16, int16 and int8 are computed)";
  }
  return launch_status();
}

}  // namespace
}  // namespace coluber

extern "C" coluber::CudaStatus coluber_cuda_ssd_state_update(const coluber::SsdCudaArgs* args,
                                                             coluber::CudaStream stream) {
  using namespace coluber;
  if (args->rows == 0) return nullptr;
  if (args->rows < 0 || args->rows > 65535 || args->num_groups < 1 || args->num_heads % args->num_groups != 0)
    return "sizes that do not fit together";
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (args->activations == DType::kBFloat16) return by_state<__nv_bfloat16>(*args, cuda_stream);
  if (args->activations == DType::kFloat32) return by_state<float>(*args, cuda_stream);
  return "activations of this type (float32 and bfloat16 are computed)";
}
