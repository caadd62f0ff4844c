// SPDX-License-Identifier: Apache-2.0
//
// Depthwise convolutions over time: a thread has a few neighbouring channels, whose window of W inputs lives in
// registers while it walks down the tokens. What a token's input is and what becomes of its sum is the policy's:
//
//   struct Policy {
//     using Args = ...;                     x-like inputs, weight, bias, state, rows, channels, width
//     load(args, token, channel, to)        the input of kVector channels
//     store(args, token, channel, sum)      from the sums, bias included
//     zero(args, token, channel)
//   };
//
// For .cu files only.
#pragma once

#include "kernels/cuda_states.cuh"

namespace coluber {

inline constexpr int kConvThreads = 128;
inline constexpr int kAnyWidth = 16;  // as kWidth: whatever args.width says

// The last inputs of some channels, right-aligned; the last of all is the present token's.
template <typename Policy, typename S, int kWidth, int kVector>
struct ConvWindow {
  using Args = typename Policy::Args;
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
  __device__ void finish(const Args& args, int64_t token, int64_t channel, const float (&weight)[kWidth][kVector],
                         const float (&bias)[kVector]) const {
    float sum[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum[i] = bias[i];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[i] = fmaf(weight[j][i], inputs[j][i], sum[i]);
    }
    Policy::store(args, token, channel, sum);
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
  const Slots slots = slots_of(args.state, row);
  if (slots.target == nullptr) return Policy::template zero<kVector>(args, row, channel);
  Window window;
  window.load_state(args, slots.source, channel);
  float weight[kWidth][kVector], bias[kVector];
  Window::load_weights(args, channel, weight, bias);
  Policy::load(args, row, channel, window.inputs[kWidth - 1]);
  window.finish(args, row, channel, weight, bias);
  window.store_state(args, slots.target, channel);
}

// The last row that starts at or before `token`, which lies in one.
__device__ inline int row_of(const int32_t* query_start_loc, int rows, int token) {
  int first = 0, last = rows - 1;
  while (first < last) {
    const int middle = (first + last + 1) / 2;
    if (query_start_loc[middle] <= token) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return first;
}

// A block takes kTile tokens of the packed ones. A row's first W-1 tokens belong to the block of its first, which alone
// reads and writes its state: a row that ends in the slot where it began has no race.
template <typename Policy, typename S, int kWidth, int kVector, int kTile>
struct ConvTile {
  using Args = typename Policy::Args;
  using Window = ConvWindow<Policy, S, kWidth, kVector>;
  const Args& args;
  int64_t channel;
  Window window;
  float weight[kWidth][kVector], bias[kVector];

  __device__ ConvTile(const Args& args, int64_t channel) : args(args), channel(channel) {
    Window::load_weights(args, channel, weight, bias);
  }
  // Tokens [from, to) of one row, the window being right for `from`; kBatch inputs are asked for at once.
  __device__ void walk(int64_t from, int64_t to) {
    constexpr int kBatch = 4;
    for (; from + kBatch <= to; from += kBatch) {
      float ahead[kBatch][kVector];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) Policy::load(args, from + b, channel, ahead[b]);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) step(from + b, ahead[b]);
    }
    for (; from < to; ++from) {
      float input[kVector];
      Policy::load(args, from, channel, input);
      step(from, input);
    }
  }
  __device__ void step(int64_t token, const float (&input)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) window.inputs[kWidth - 1][i] = input[i];
    window.finish(args, token, channel, weight, bias);
    window.shift();
  }
  // What the row [begin, end) leaves in its slot, and the window before its first token.
  __device__ void begin_row(const Slots& slots, int64_t begin, int64_t end) {
    window.load_state(args, slots.source, channel);
    Window last = window;
    const int64_t kept = args.width - 1;
    for (int64_t token = max(begin, end - kept); token < end; ++token) {
      Policy::load(args, token, channel, last.inputs[kWidth - 1]);
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
    for (int64_t t = token - (args.width - 1); t < token; ++t) {
      Policy::load(args, t, channel, window.inputs[kWidth - 1]);
      window.shift();
    }
  }
};

template <typename Policy, typename S, int kWidth, int kVector, int kTile>
__global__ void __launch_bounds__(kConvThreads) conv_tiles(const __grid_constant__ typename Policy::Args args) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x) * kVector;
  if (channel >= args.channels) return;
  ConvTile<Policy, S, kWidth, kVector, kTile> tile(args, channel);
  const int rows = static_cast<int>(args.rows), kept = static_cast<int>(args.width) - 1;
  const int first = static_cast<int>(blockIdx.y) * kTile;
  const int last = min(first + kTile, args.query_start_loc[rows]);
  if (first >= last) return;
  for (int row = row_of(args.query_start_loc, rows, first); row < rows; ++row) {
    const int begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
    if (begin >= last) return;
    const bool begins_here = begin >= first;
    const int from = begins_here ? begin : max(first, begin + kept);
    const int to = min(end, max(last, begins_here ? begin + kept : 0));
    if (from >= to) continue;
    const Slots slots = slots_of(args.state, row);
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

// A row without tokens leaves what it began with.
template <typename Policy, typename S, int kWidth, int kVector>
__global__ void __launch_bounds__(kConvThreads) conv_empty_rows(const __grid_constant__ typename Policy::Args args) {
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x) * kVector;
  const int row = static_cast<int>(blockIdx.y);
  if (channel >= args.channels || args.query_start_loc[row] != args.query_start_loc[row + 1]) return;
  const Slots slots = slots_of(args.state, row);
  if (slots.target != nullptr)
    ConvTile<Policy, S, kWidth, kVector, 1>(args, channel)
        .begin_row(slots, args.query_start_loc[row], args.query_start_loc[row]);
}

template <typename Policy, typename S, int kWidth, int kVector>
void launch_conv(const typename Policy::Args& args, bool is_update, cudaStream_t stream) {
  constexpr int64_t kChannels = kConvThreads * kVector;
  constexpr int kTile = 32;
  const auto columns = static_cast<unsigned>((args.channels + kChannels - 1) / kChannels);
  const dim3 by_row(columns, static_cast<unsigned>(args.rows));
  if (is_update) {
    conv_update<Policy, S, kWidth, kVector><<<by_row, kConvThreads, 0, stream>>>(args);
    return;
  }
  conv_empty_rows<Policy, S, kWidth, kVector><<<by_row, kConvThreads, 0, stream>>>(args);
  if (args.tokens == 0) return;
  const dim3 by_tile(columns, static_cast<unsigned>((args.tokens + kTile - 1) / kTile));
  conv_tiles<Policy, S, kWidth, kVector, kTile><<<by_tile, kConvThreads, 0, stream>>>(args);
}

// Eight channels a thread at the widths that models have, where everything lies at multiples of 16 bytes; else one.
template <typename Policy>
CudaStatus run_conv(const typename Policy::Args& args, bool inputs_are_aligned, bool is_update, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows < 0 || args.rows > 65535 || args.width < 2 || args.width > kAnyWidth || args.tokens < 0 ||
      args.tokens > int64_t{65535} * 32)
    return "sizes that do not fit together";
  const auto with_state = [&](auto s) -> CudaStatus {
    using S = decltype(s);
    const bool aligned = inputs_are_aligned && slots_are_aligned(args.state) && args.channels % 8 == 0 &&
                         reinterpret_cast<uintptr_t>(args.weight) % 16 == 0 &&
                         reinterpret_cast<uintptr_t>(args.bias) % 16 == 0;
    if (aligned && args.width == 4) {
      launch_conv<Policy, S, 4, 8>(args, is_update, stream);
    } else if (aligned && args.width == 3) {
      launch_conv<Policy, S, 3, 8>(args, is_update, stream);
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
