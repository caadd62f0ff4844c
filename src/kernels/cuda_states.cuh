// SPDX-License-Identifier: Apache-2.0
//
// States as the CUDA kernels of decoding see them: the slots of a row (kernels/state_slots.h), and lines of elements
// that lie next to each other, spread over the lanes of a warp. Whole numbers have a float32 scale a line, behind a
// slot's elements, chosen anew from the line's largest magnitude whenever it is written. States are held in the order
// of their declared shape. For .cu files only.
#pragma once

#include <type_traits>

#include "kernels/cuda_operation.cuh"

namespace coluber {

template <typename S>
inline constexpr bool kScaled = std::is_same_v<S, int16_t> || std::is_same_v<S, int8_t>;
template <typename S>
inline constexpr float kLargestCode = std::is_same_v<S, int16_t> ? 32767.0f : 127.0f;

__device__ inline float& scale_of(char* slot, int64_t scale_offset_bytes, int64_t line) {
  return reinterpret_cast<float*>(slot + scale_offset_bytes)[line];
}
__device__ inline float scale_of(const char* slot, int64_t scale_offset_bytes, int64_t line) {
  return reinterpret_cast<const float*>(slot + scale_offset_bytes)[line];
}

// Divides numbers below 2^16 by one that all threads share, without the hundred instructions of a division.
class SmallDivisor {
 public:
  explicit SmallDivisor(int64_t by) : reciprocal_(by == 1 ? 0 : static_cast<uint32_t>((int64_t{1} << 32) / by + 1)) {}
  __device__ int divide(int n) const {
    return reciprocal_ == 0 ? n : static_cast<int>(__umulhi(static_cast<uint32_t>(n), reciprocal_));
  }

 private:
  uint32_t reciprocal_;
};

// The largest magnitude of a line's elements in a lane.
template <int kCount>
__device__ inline float largest_of(const float (&s)[kCount]) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest = fmaxf(largest, fabsf(s[i]));
  return largest;
}
// By what a line's elements are multiplied before they are stored as whole numbers; what is too small to have a
// reciprocal is stored as zeros.
template <typename S>
__device__ inline float codes_per_unit(float largest) {
  return largest >= 1e-30f ? __fdividef(kLargestCode<S>, largest) : 0.0f;
}
template <typename S>
__device__ inline float unit_of_code(float largest) {
  return largest >= 1e-30f ? largest * (1.0f / kLargestCode<S>) : 0.0f;
}

// Lines of kN elements at multiples of 16 bytes: kVectors times 16 bytes a lane, kTogether lines side by side in a
// warp.
template <typename S, int kN>
struct WholeLines {
  using Element = S;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(S));
  static constexpr int kLanes = kN / kVector < 32 ? kN / kVector : 32;
  static constexpr int kVectors = kN / (kVector * kLanes);
  static constexpr int kTogether = 32 / kLanes;
  static constexpr int kCount = kVectors * kVector;  // elements a lane
  struct Asked {
    uint4 words[kVectors];
    float scale;
  };

  // What belongs to the elements of a lane: [size] at 8 bytes' alignment.
  template <typename T>
  __device__ static void spread(const T* from, int, int lane, float (&to)[kCount]) {
    float vector[kVector];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      load_floats(from + (v * kLanes + lane) * kVector, vector);
#pragma unroll
      for (int i = 0; i < kVector; ++i) to[v * kVector + i] = vector[i];
    }
  }
  // Asks for line `line` of a state, zeros where there is no source, and waits for nothing: elements become floats in
  // `take` alone, because what is converted behind a condition is waited for there.
  __device__ static Asked ask(const char* source, int64_t scale_offset_bytes, int64_t line, int, int lane) {
    Asked asked;
    const uint4* from = reinterpret_cast<const uint4*>(source + line * (kN * static_cast<int>(sizeof(S)))) + lane;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) asked.words[v] = source == nullptr ? uint4{0, 0, 0, 0} : from[v * kLanes];
    asked.scale = kScaled<S> && source != nullptr ? scale_of(source, scale_offset_bytes, line) : 0.0f;
    return asked;
  }
  __device__ static void take(const Asked& asked, int, int, float (&s)[kCount]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint4& vector = asked.words[v];
      const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) WordOf<S>::unpack(words[i], s + v * kVector + i * WordOf<S>::kCount);
    }
    if constexpr (kScaled<S>) {
#pragma unroll
      for (float& element : s) element *= asked.scale;
    }
  }
  // `per_unit`: codes_per_unit of the line where elements are whole numbers.
  __device__ static void put(char* target, int64_t line, int, int lane, float per_unit, const float (&s)[kCount]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float vector[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) vector[i] = kScaled<S> ? s[v * kVector + i] * per_unit : s[v * kVector + i];
      store_floats(reinterpret_cast<S*>(target) + line * kN + (v * kLanes + lane) * kVector, vector);
    }
  }
};

// Lines of any size up to 32 * kChunks, anywhere: a warp a line, 32 elements side by side.
template <typename S, int kChunks>
struct RaggedLines {
  using Element = S;
  static constexpr int kLanes = 32, kTogether = 1, kCount = kChunks;
  struct Asked {
    float elements[kChunks];
    float scale;
  };

  template <typename T>
  __device__ static void spread(const T* from, int size, int lane, float (&to)[kCount]) {
#pragma unroll
    for (int j = 0; j < kChunks; ++j) to[j] = j * 32 + lane < size ? to_float(from[j * 32 + lane]) : 0.0f;
  }
  __device__ static Asked ask(const char* source, int64_t scale_offset_bytes, int64_t line, int size, int lane) {
    Asked asked;
    asked.scale = kScaled<S> && source != nullptr ? scale_of(source, scale_offset_bytes, line) : 0.0f;
    spread(reinterpret_cast<const S*>(source) + line * size, source == nullptr ? 0 : size, lane, asked.elements);
    return asked;
  }
  __device__ static void take(const Asked& asked, int size, int lane, float (&s)[kCount]) {
#pragma unroll
    for (int j = 0; j < kChunks; ++j)
      s[j] = !kScaled<S> ? asked.elements[j] : j * 32 + lane < size ? asked.elements[j] * asked.scale : 0.0f;
  }
  __device__ static void put(char* target, int64_t line, int size, int lane, float per_unit, const float (&s)[kCount]) {
#pragma unroll
    for (int j = 0; j < kChunks; ++j)
      if (j * 32 + lane < size)
        reinterpret_cast<S*>(target)[line * size + j * 32 + lane] = from_float<S>(kScaled<S> ? s[j] * per_unit : s[j]);
  }
};

// Which lines a warp of a block takes: kPasses * kTogether of one head; blocks are (tile of a head, head, row).
template <typename L, int kPasses, int kWarps>
struct LinesOfWarp {
  static constexpr int kLinesOfBlock = kPasses * L::kTogether * kWarps;
  int lane, head, first, lines;
  __device__ explicit LinesOfWarp(int64_t lines_of_head)
      : lane(static_cast<int>(threadIdx.x) % L::kLanes),
        head(static_cast<int>(blockIdx.y)),
        first((static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * kPasses * L::kTogether +
              static_cast<int>(threadIdx.x) % 32 / L::kLanes),
        lines(static_cast<int>(lines_of_head)) {}
  __device__ int at(int pass) const { return first + pass * L::kTogether; }
  __device__ bool there(int pass) const { return at(pass) < lines; }
  // The pass whose sums this lane closes (cuda_math.cuh); only some lanes do.
  __device__ int own_pass() const { return owned_value<L::kLanes, kPasses>(lane); }
  __device__ bool closes() const { return owns_value<L::kLanes, kPasses>(lane) && there(own_pass()); }

  static dim3 grid(int64_t lines_of_head, int64_t heads, int64_t rows) {
    return {static_cast<unsigned>((lines_of_head + kLinesOfBlock - 1) / kLinesOfBlock), static_cast<unsigned>(heads),
            static_cast<unsigned>(rows)};
  }
};

// Stores what next(pass, s) makes of the lines of each pass, which lie from `line` on in the slot, and for whole
// numbers their scales. All lanes take part.
template <typename L, int kPasses, int kWarps, typename Next>
__device__ inline void put_lines(const LinesOfWarp<L, kPasses, kWarps>& mine, char* target, int64_t scale_offset_bytes,
                                 int64_t line, int size, Next&& next) {
  using S = typename L::Element;
  if constexpr (!kScaled<S>) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      float s[L::kCount];
      next(i, s);
      if (mine.there(i)) L::put(target, line + mine.at(i), size, mine.lane, 1.0f, s);
    }
  } else {
    float s[kPasses][L::kCount], largest[kPasses];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      next(i, s[i]);
      largest[i] = largest_of(s[i]);
    }
    float own = maxima_to_owners<L::kLanes>(largest, mine.lane);
    if (mine.closes()) scale_of(target, scale_offset_bytes, line + mine.at(mine.own_pass())) = unit_of_code<S>(own);
    own = codes_per_unit<S>(own);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const float per_unit = from_owner<L::kLanes, kPasses>(own, i);
      if (mine.there(i)) L::put(target, line + mine.at(i), size, mine.lane, per_unit, s[i]);
    }
  }
}

template <typename L, typename T, int kPasses, int kWarps>
__device__ inline void zero_lines(const LinesOfWarp<L, kPasses, kWarps>& mine, T* y) {
  wait_for_grid_before();
  for (int i = 0; i < kPasses; ++i)
    if (mine.lane == 0 && mine.there(i)) y[mine.at(i)] = from_float<T>(0.0f);
}

// How many lines in turn a warp takes, up to `most`: no more than fit into the registers, nor than lanes to close them.
template <typename L>
constexpr int passes_of(int most) {
  const int by_registers = L::kCount > 16 ? 1 : 64 / L::kCount;
  const int fewest = by_registers < L::kLanes ? by_registers : L::kLanes;
  return fewest < most ? fewest : most;
}

// Calls f(Lines{}) with what fits lines of `size` elements: a size that has its own, where everything is aligned.
template <typename S, int kMostChunks, typename F>
void with_lines(bool is_aligned, int64_t size, F&& f) {
  switch (is_aligned ? size : 0) {
    case 16:
      return f(WholeLines<S, 16>{});
    case 32:
      return f(WholeLines<S, 32>{});
    case 64:
      return f(WholeLines<S, 64>{});
    case 128:
      return f(WholeLines<S, 128>{});
    case 256:
      return f(WholeLines<S, 256>{});
    default:
      if (size <= 64) return f(RaggedLines<S, 2>{});
      if constexpr (kMostChunks > 4)
        if (size <= 128) return f(RaggedLines<S, 4>{});
      return f(RaggedLines<S, kMostChunks>{});
  }
}

// Calls f(S{}) with the type of the states' elements.
template <typename F>
CudaStatus with_state_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      f(float{});
      return launch_status();
    case DType::kBFloat16:
      f(__nv_bfloat16{});
      return launch_status();
    case DType::kFloat16:
      f(__half{});
      return launch_status();
    case DType::kInt16:
      f(int16_t{});
      return launch_status();
    case DType::kInt8:
      f(int8_t{});
      return launch_status();
    default:
      return "a state of this type (float32, bfloat16, float16, int16 and int8 are computed)";
  }
}

// Calls f(T{}) with the type of the activations.
template <typename F>
CudaStatus with_activations(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) return f(__nv_bfloat16{});
  if (dtype == DType::kFloat32) return f(float{});
  return "activations of this type (float32 and bfloat16 are computed)";
}

// 16 bytes of a state's elements, at any slot.
inline bool slots_are_aligned(const StateSlots& state) {
  return reinterpret_cast<uintptr_t>(state.base) % 16 == 0 && state.slot_stride_bytes % 16 == 0;
}
// A line of inputs at each token.
template <typename T>
bool inputs_are_aligned(const void* first, int64_t stride) {
  return reinterpret_cast<uintptr_t>(first) % 16 == 0 && stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

}  // namespace coluber
