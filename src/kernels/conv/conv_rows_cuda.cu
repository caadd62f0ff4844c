// SPDX-License-Identifier: Apache-2.0
// Convolutions over packed rows, a thread a channel and a block a stretch of tokens: only the first stretch looks at
// the row's window, which it replaces when it is done, so that stretches need not wait for each other.
#include "kernels/conv/causal_conv1d.h"
#include "kernels/conv/conv_windows.h"
#include "kernels/conv/short_conv.h"
#include "kernels/cuda_operation.cuh"

namespace coluber {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kStretch = 32;  // tokens; not fewer than a window's
static_assert(kStretch >= kMaxConvWidth);
constexpr unsigned kStretches = 16;  // side by side

// What differs between the operations: what goes into the convolution and what comes out of it.
struct Plain {
  const float* x;
  int64_t x_stride;
  bool silu_after;
  __device__ float input(int64_t token, int64_t c) const { return x[token * x_stride + c]; }
  __device__ float output(int64_t, int64_t, float sum) const { return silu_after ? silu(sum) : sum; }
};
struct Gated {
  const float* b;
  const float* c_gate;
  const float* x;
  int64_t stride;
  __device__ float input(int64_t token, int64_t c) const { return b[token * stride + c] * x[token * stride + c]; }
  __device__ float output(int64_t token, int64_t c, float sum) const { return c_gate[token * stride + c] * sum; }
};

struct Rows {
  const float* weight;
  const float* bias;
  float* y;
  int64_t y_stride;
  StateSlots state;
  const int32_t* query_start_loc;  // null: row r is token r
  int64_t channels;
  int64_t width;
};

template <typename Form>
struct Row {
  const Rows& rows;
  const Form& form;
  RowSlots slots;
  int64_t begin, c;

  // Input `token` of the row; below 0, what came before it.
  __device__ float at(int64_t token) const {
    if (token >= 0) return form.input(begin + token, c);
    return load_element(slots.source, rows.state.dtype, (rows.width - 1 + token) * rows.channels + c);
  }
};

// Weights and windows of at most kMost inputs, in registers.
template <int kMost, typename Form>
__global__ void __launch_bounds__(kThreads) convolve(const __grid_constant__ Rows rows, const Form form) {
  const int64_t c = blockIdx.x * int64_t{kThreads} + threadIdx.x, r = blockIdx.y;
  if (c >= rows.channels) return;
  const int64_t begin = rows.query_start_loc != nullptr ? rows.query_start_loc[r] : r;
  const int64_t count = rows.query_start_loc != nullptr ? rows.query_start_loc[r + 1] - begin : 1;
  const Row<Form> row{rows, form, row_slots(rows.state, r), begin, c};
  if (row.slots.target == nullptr) {
    for (int64_t t = blockIdx.z; t < count; t += gridDim.z) rows.y[(begin + t) * rows.y_stride + c] = 0.0f;
    return;
  }
  // `oldest` is the place of the window's oldest input: the newest is at kMost - 1.
  const int kept = static_cast<int>(rows.width) - 1, oldest = kMost - 1 - kept;
  float weight[kMost], window[kMost], left[kMost];
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    weight[j] = j >= oldest ? rows.weight[(j - oldest) * rows.channels + c] : 0.0f;
    left[j] = blockIdx.z == 0 && j > oldest ? row.at(count - (kMost - j)) : 0.0f;
  }
  const float bias = rows.bias != nullptr ? rows.bias[c] : 0.0f;
  const int64_t stretch = gridDim.z == 1 ? count : kStretch;
  for (int64_t first = blockIdx.z * stretch; first < count; first += gridDim.z * stretch) {
#pragma unroll
    for (int j = 0; j < kMost; ++j) window[j] = j > oldest ? row.at(first - (kMost - j)) : 0.0f;
    for (int64_t t = first; t < count && t < first + stretch; ++t) {
#pragma unroll
      for (int j = 0; j < kMost - 1; ++j) window[j] = window[j + 1];
      window[kMost - 1] = row.at(t);
      float sum = bias;
#pragma unroll
      for (int j = 0; j < kMost; ++j)
        if (j >= oldest) sum = fmaf(weight[j], window[j], sum);
      rows.y[(begin + t) * rows.y_stride + c] = form.output(begin + t, c, sum);
    }
  }
  if (blockIdx.z != 0) return;
#pragma unroll
  for (int j = 0; j < kMost; ++j)
    if (j > oldest) store_element(row.slots.target, rows.state.dtype, (j - oldest - 1) * rows.channels + c, left[j]);
}

// `overlaps`: y may lie over the inputs, so that each is read before anything behind it is written.
template <typename Form>
CudaStatus launch(const Rows& rows, const Form& form, int64_t count, bool overlaps, cudaStream_t stream) {
  if (count == 0) return nullptr;
  if (count > kMostGridRows) return kTooManyRows;
  if (!is_float_state(rows.state.dtype)) return kStateOfOtherType;
  const dim3 grid(blocks_of(rows.channels, kThreads), static_cast<unsigned>(count), overlaps ? 1 : kStretches);
  if (rows.width <= 4)
    convolve<4><<<grid, kThreads, 0, stream>>>(rows, form);
  else
    convolve<kMaxConvWidth><<<grid, kThreads, 0, stream>>>(rows, form);
  return launch_status();
}

CudaStatus conv1d_on_device(const CausalConv1dArgs& args, cudaStream_t stream) {
  const Rows rows{args.weight,          args.bias,     args.y,    args.y_stride, args.state,
                  args.query_start_loc, args.channels, args.width};
  return launch(rows, Plain{args.x, args.x_stride, args.silu}, args.rows, args.query_start_loc == nullptr, stream);
}
CudaStatus conv1d_update_on_device(const CausalConv1dArgs& args, cudaStream_t stream) {
  CausalConv1dArgs step = args;
  step.query_start_loc = nullptr;
  return conv1d_on_device(step, stream);
}

CudaStatus short_conv_on_device(const ShortConvArgs& args, cudaStream_t stream) {
  const Rows rows{args.weight,          args.bias,     args.y,    args.y_stride, args.state,
                  args.query_start_loc, args.channels, args.width};
  return launch(rows, Gated{args.b, args.c_gate, args.x, args.in_stride}, args.rows, true, stream);
}
CudaStatus short_conv_update_on_device(const ShortConvArgs& args, cudaStream_t stream) {
  ShortConvArgs step = args;
  step.query_start_loc = nullptr;
  return short_conv_on_device(step, stream);
}

__global__ void __launch_bounds__(kThreads) write_windows(const __grid_constant__ ConvWindowsArgs args) {
  const int64_t c = blockIdx.x * int64_t{kThreads} + threadIdx.x, r = blockIdx.y;
  if (c >= args.channels) return;
  const RowSlots slots = row_slots(args.state, r);
  const int64_t begin = args.query_start_loc[r];
  for (int32_t i = args.exports.starts[r]; i < args.exports.starts[r + 1]; ++i) {
    char* out = slot_at(args.state, args.exports.slots[i]);
    for (int64_t j = 0; j < args.taps; ++j) {
      const int64_t token = args.exports.offsets[i] - args.taps + j;
      float value;
      if (token < 0) {
        value = load_element(slots.source, args.state.dtype, (args.taps + token) * args.channels + c);
      } else {
        const int64_t at = (begin + token) * args.x_stride + c;
        value = args.factor != nullptr ? args.factor[at] * args.x[at] : args.x[at];
      }
      store_element(out, args.state.dtype, j * args.channels + c, value);
    }
  }
}

CudaStatus windows_on_device(const ConvWindowsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows > kMostGridRows) return kTooManyRows;
  if (!is_float_state(args.state.dtype)) return kStateOfOtherType;
  const dim3 grid(blocks_of(args.channels, kThreads), static_cast<unsigned>(args.rows));
  write_windows<<<grid, kThreads, 0, stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(causal_conv1d, CausalConv1dArgs, conv1d_on_device)
COLUBER_CUDA_OPERATION(causal_conv1d_update, CausalConv1dArgs, conv1d_update_on_device)
COLUBER_CUDA_OPERATION(short_conv, ShortConvArgs, short_conv_on_device)
COLUBER_CUDA_OPERATION(short_conv_update, ShortConvArgs, short_conv_update_on_device)
COLUBER_CUDA_OPERATION(conv_windows, ConvWindowsArgs, windows_on_device)
