// SPDX-License-Identifier: Apache-2.0
//
// Depthwise convolutions over time: a thread has a few neighbouring channels, whose window of W inputs lives in
// registers while it walks down the tokens. What a token's input is and what becomes of its sum is the policy's:
//
//   struct Policy {
//     using Args = ...;                     x-like inputs, weight, bias, state, rows, channels, width
//     struct Asked<kVector>                 what a token needs of memory for kVector channels, as it was loaded
//     ask(args, token, channel)             returns it without waiting
//     input(asked, to)                      the input of the convolution
//     store(args, asked, token, channel, sum)  from the sums, bias included
//     zero(args, token, channel)
//   };
//
// For .cu files only.
#pragma once

#include "kernels/cuda_states.cuh"

namespace coluber {

inline constexpr int kConvThreads = 128;
inline constexpr int kConvTile = 32;  // tokens of a block in a prefill
inline constexpr int kAnyWidth = 16;  // as kWidth: whatever args.width says

// kVector neighbouring elements as they lie in memory, 8 bytes or a multiple of 16: those of tokens to come wait in
// half the registers of floats.
template <typename T, int kVector>
struct AskedElements {
  static constexpr int kBytes = kVector * static_cast<int>(sizeof(T));
  using Word = std::conditional_t<kBytes % 16 == 0, uint4, uint2>;
  Word words[kBytes / sizeof(Word)];
  __device__ static AskedElements from(const T* place) {
    AskedElements asked;
#pragma unroll
    for (int i = 0; auto& word : asked.words) word = reinterpret_cast<const Word*>(place)[i++];
    return asked;
  }
  __device__ void take(float (&to)[kVector]) const {
    const auto* parts = reinterpret_cast<const uint32_t*>(words);
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) WordOf<T>::unpack(parts[i], to + i * WordOf<T>::kCount);
  }
};
template <typename T>
struct AskedElements<T, 1> {
  T element;
  __device__ static AskedElements from(const T* place) { return {*place}; }
  __device__ void take(float (&to)[1]) const { to[0] = to_float(element); }
};

// The last inputs of some channels, right-aligned; the last of all is the present token's.
template <typename Policy, typename S, int kWidth, int kVector>
struct ConvWindow {
  using Args = typename Policy::Args;
  using Asked = typename Policy::template Asked<kVector>;
  float inputs[kWidth][kVector];

  __device__ static int unused(const Args& args) {
    return kWidth == kAnyWidth ? kAnyWidth - static_cast<int>(args.width) : 0;
  }
  __device__ void shift() {
#pragma unroll
    for (int j = 0; j + 1 < kWidth; ++j)
#pragma unroll
      for (int i = 0; i < kVector; ++i) inputs[j][i] = inputs[j + 1][i];
  }
  // As before the row's first token.
  __device__ void load_state(const Args& args, const char* source, int64_t channel) {
    const S* state = reinterpret_cast<const S*>(source) + channel;
#pragma unroll
    for (int j = 0; j + 1 < kWidth; ++j) {
#pragma unroll
      for (float& input : inputs[j]) input = 0.0f;
      if (source != nullptr && j >= unused(args)) load_some(state + (j - unused(args)) * args.channels, inputs[j]);
    }
  }
  // The inputs [1, W) of the window: what a row that ends here leaves.
  __device__ void store_state(const Args& args, char* target, int64_t channel) const {
    S* state = reinterpret_cast<S*>(target) + channel;
#pragma unroll
    for (int j = 1; j < kWidth; ++j)
      if (j - 1 >= unused(args)) store_some(state + (j - 1 - unused(args)) * args.channels, inputs[j]);
  }
  __device__ void finish(const Args& args, const Asked& asked, int64_t token, int64_t channel,
                         const float (&weight)[kWidth][kVector], const float (&bias)[kVector]) const {
    float sum[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum[i] = bias[i];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[i] = fmaf(weight[j][i], inputs[j][i], sum[i]);
    }
    Policy::store(args, asked, token, channel, sum);
  }
  __device__ static void load_weights(const Args& args, int64_t channel, float (&weight)[kWidth][kVector],
                                      float (&bias)[kVector]) {
#pragma unroll
    for (float& b : bias) b = 0.0f;
    if (args.bias != nullptr) load_some(args.bias + channel, bias);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
#pragma unroll
      for (float& w : weight[j]) w = 0.0f;
      if (j >= unused(args)) load_some(args.weight + (j - unused(args)) * args.channels + channel, weight[j]);
    }
  }
};

template <typename Policy, typename S, int kWidth, int kVector>
__global__ void __launch_bounds__(kConvThreads) conv_update(const __grid_constant__ typename Policy::Args args) {
  using Window = ConvWindow<Policy, S, kWidth, kVector>;
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x) * kVector;
  const int64_t row = blockIdx.y;
  if (channel >= args.channels) return;
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) return Policy::template zero<kVector>(args, row, channel);
  Window window;
  window.load_state(args, slots.source, channel);
  float weight[kWidth][kVector], bias[kVector];
  Window::load_weights(args, channel, weight, bias);
  const auto asked = Policy::template ask<kVector>(args, row, channel);
  Policy::input(asked, window.inputs[kWidth - 1]);
  window.finish(args, asked, row, channel, weight, bias);
  window.store_state(args, slots.target, channel);
}

// The first row that starts at `token` or later; `rows` where none does.
__device__ inline int first_row_from(const int32_t* query_start_loc, int rows, int token) {
  int first = 0, last = rows;
  while (first < last) {
    const int middle = (first + last) / 2;
    if (query_start_loc[middle] >= token) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

// A block takes kConvTile tokens of the packed ones. A row's first W-1 tokens belong to the block of its first, which
// alone reads and writes its state: a row that ends in the slot where it began has no race. A row without tokens, which
// leaves what it began with, belongs to the block of the token behind it.
template <typename Policy, typename S, int kWidth, int kVector>
struct ConvTile {
  using Args = typename Policy::Args;
  using Window = ConvWindow<Policy, S, kWidth, kVector>;
  using Asked = typename Policy::template Asked<kVector>;
  // Tokens asked for at a time; more would leave registers for fewer warps.
  static constexpr int kBatch = sizeof(Asked) <= 8 ? 8 : sizeof(Asked) <= 16 ? 4 : 2;
  const Args& args;
  int64_t channel;
  Window window;
  float weight[kWidth][kVector], bias[kVector];

  __device__ ConvTile(const Args& args, int64_t channel) : args(args), channel(channel) {
    Window::load_weights(args, channel, weight, bias);
  }
  __device__ Asked ask(int64_t token) const { return Policy::template ask<kVector>(args, token, channel); }
  __device__ void ask(int64_t from, Asked (&batch)[kBatch]) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) batch[b] = ask(from + b);
  }
  // Tokens [from, to) of one row, the window being right for `from`; a batch is on its way while the one before it is
  // computed.
  __device__ void walk(int64_t from, int64_t to) {
    Asked next[kBatch];
    if (from + kBatch <= to) ask(from, next);
    for (; from + kBatch <= to; from += kBatch) {
      Asked present[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) present[b] = next[b];
      if (from + 2 * kBatch <= to) ask(from + kBatch, next);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) step(from + b, present[b]);
    }
    for (; from < to; ++from) step(from, ask(from));
  }
  __device__ void step(int64_t token, const Asked& asked) {
    Policy::input(asked, window.inputs[kWidth - 1]);
    window.finish(args, asked, token, channel, weight, bias);
    window.shift();
  }
  // What the row [begin, end) leaves in its slot, and the window before its first token.
  __device__ void begin_row(const RowSlots& slots, int64_t begin, int64_t end) {
    window.load_state(args, slots.source, channel);
    Window last = window;
    const int64_t kept = args.width - 1;
    for (int64_t token = max(begin, end - kept); token < end; ++token) {
      Policy::input(ask(token), last.inputs[kWidth - 1]);
      last.shift();
    }
    // After the shifts the newest stands one place before the end.
#pragma unroll
    for (int j = kWidth - 1; j > 0; --j)
#pragma unroll
      for (int i = 0; i < kVector; ++i) last.inputs[j][i] = last.inputs[j - 1][i];
    last.store_state(args, slots.target, channel);
  }
  // The window before `token`, whose row began at least W-1 tokens ago. What a narrower window leaves unused is zero.
  __device__ void fill_window(int64_t token) {
    window.load_state(args, nullptr, channel);
#pragma unroll
    for (int j = 0; j + 1 < kWidth; ++j)
      if (j >= Window::unused(args)) Policy::input(ask(token - (kWidth - 1) + j), window.inputs[j]);
  }
};

template <typename Policy, typename S, int kWidth, int kVector>
__global__ void __launch_bounds__(kConvThreads) conv_tiles(const __grid_constant__ typename Policy::Args args) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x) * kVector;
  if (channel >= args.channels) return;
  ConvTile<Policy, S, kWidth, kVector> tile(args, channel);
  const int rows = static_cast<int>(args.rows), kept = static_cast<int>(args.width) - 1;
  const int first = static_cast<int>(blockIdx.y) * kConvTile, last = first + kConvTile;
  int row = first_row_from(args.query_start_loc, rows, first);
  if (row > 0 && args.query_start_loc[row] > first) --row;
  for (; row < rows; ++row) {
    const int begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
    if (begin >= last) return;
    const bool begins_here = begin >= first;
    const int from = begins_here ? begin : max(first, begin + kept);
    const int to = min(end, max(last, begins_here ? begin + kept : 0));
    if (from >= to && begin != end) continue;
    const RowSlots slots = row_slots(args.state, row);
    if (slots.target == nullptr) {
      for (int token = from; token < to; ++token) Policy::template zero<kVector>(args, token, channel);
      continue;
    }
    if (begins_here) {
      tile.begin_row(slots, begin, end);
    } else {
      tile.fill_window(from);
    }
    tile.walk(from, to);
  }
}

template <typename Policy, typename S, int kWidth, int kVector>
void launch_conv(const typename Policy::Args& args, bool is_update, cudaStream_t stream) {
  constexpr int64_t kChannels = kConvThreads * kVector;
  const auto columns = static_cast<unsigned>((args.channels + kChannels - 1) / kChannels);
  if (is_update) {
    conv_update<Policy, S, kWidth, kVector>
        <<<dim3(columns, static_cast<unsigned>(args.rows)), kConvThreads, 0, stream>>>(args);
    return;
  }
  // One more than tokens need: rows without any may stand behind the last.
  const dim3 by_tile(columns, static_cast<unsigned>(args.tokens / kConvTile + 1));
  conv_tiles<Policy, S, kWidth, kVector><<<by_tile, kConvThreads, 0, stream>>>(args);
}

// Four channels a thread at the widths that models have, where everything lies at multiples of 16 bytes; else one.
template <typename Policy>
CudaStatus run_conv(const typename Policy::Args& args, bool inputs_are_aligned, bool is_update, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows < 0 || args.rows > 65535 || args.width < 2 || args.width > kAnyWidth || args.tokens < 0 ||
      args.tokens / kConvTile + 1 > 65535)
    return "sizes that do not fit together";
  const auto with_state = [&](auto s) -> CudaStatus {
    using S = decltype(s);
    const bool aligned = inputs_are_aligned && slots_are_aligned(args.state) && args.channels % 8 == 0 &&
                         reinterpret_cast<uintptr_t>(args.weight) % 16 == 0 &&
                         reinterpret_cast<uintptr_t>(args.bias) % 16 == 0;
    if (aligned && args.width == 4) {
      launch_conv<Policy, S, 4, 4>(args, is_update, stream);
    } else if (aligned && args.width == 3) {
      launch_conv<Policy, S, 3, 4>(args, is_update, stream);
    } else {
      launch_conv<Policy, S, kAnyWidth, 1>(args, is_update, stream);
    }
    return launch_status();
  };
  if (args.state.dtype == DType::kFloat32) return with_state(float{});
  if (args.state.dtype == DType::kBFloat16) return with_state(__nv_bfloat16{});
  if (args.state.dtype == DType::kFloat16) return with_state(__half{});
  return "a state of this type (float32, bfloat16 and float16 are computed)";
}

}  // namespace coluber
