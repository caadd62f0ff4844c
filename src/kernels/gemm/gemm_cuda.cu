// SPDX-License-Identifier: Apache-2.0
// Products of float32 activations with float32, bfloat16 or float16 weights: each output is one chain of fused
// multiply-adds over ascending k, as gemm.h promises, so that its bits do not depend on the rows beside it, and are the
// processor's. A block has a tile of 64 outputs by 64 rows; of few rows, as in decoding, one that is made for them
// (few_rows_cuda.cuh). Where activations may be rounded, 16-bit weights go to the tensor cores instead
// (cublas_lt_cuda.h).
#include "kernels/gemm/cublas_lt_cuda.h"
#include "kernels/gemm/few_rows_cuda.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_tile_cuda.cuh"
#include "kernels/gemm/narrow_rows_cuda.cuh"

namespace coluber {
namespace {

struct Product {
  const float* a;
  int64_t lda, m;
  const void* w;
  int64_t n, k;
  const float* bias;
  float* c;
  int64_t ldc;
  bool accumulate;
  const uint8_t* only_rows;  // [M], 0: not computed, C stays; null: all rows

  __device__ bool wants(int64_t row) const { return row < m && (only_rows == nullptr || only_rows[row] != 0); }
  __device__ void store(int64_t row, int64_t col, float value) const {
    if (col >= n || !wants(row)) return;
    if (bias != nullptr) value += bias[col];
    float& to = c[row * ldc + col];
    to = accumulate ? to + value : value;
  }
};

// Whether the block has anything to do with its rows.
template <int kRows>
__device__ bool wants_any(const Product& p, int64_t first_row) {
  return p.only_rows == nullptr || __syncthreads_or(threadIdx.x < kRows && p.wants(first_row + threadIdx.x));
}

template <typename W, int kRows>
__global__ void __launch_bounds__(kTileThreads) multiply(const __grid_constant__ Product p) {
  constexpr int kMine = kRows / 16;
  const int64_t first_row = blockIdx.y * int64_t{kRows}, first_col = blockIdx.x * int64_t{kTileCols};
  if (!wants_any<kRows>(p, first_row)) return;
  const float* rows[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int64_t row = first_row + loaded_row(i);
    rows[i] = row < p.m ? p.a + row * p.lda : nullptr;
  }
  float sum[kMine][4] = {};
  multiply_tile<W, kRows>(rows, static_cast<const W*>(p.w), p.n, p.k, first_col, sum);
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int64_t row = first_row + computed_row<kRows>(i);
    for (int j = 0; j < 4; ++j) p.store(row, first_col + computed_col(j), sum[i][j]);
  }
}

template <typename W, int kMine>
__global__ void __launch_bounds__(FewRows<W, kMine>::kThreads) multiply_few_rows(const __grid_constant__ Product p) {
  using Tile = FewRows<W, kMine>;
  const int64_t first_row = blockIdx.y * int64_t{Tile::kRows}, first_col = blockIdx.x * int64_t{Tile::kCols};
  if (!wants_any<Tile::kRows>(p, first_row)) return;
  const Tile tile{p.a + first_row * p.lda,
                  p.lda,
                  static_cast<int>(min(p.m - first_row, int64_t{Tile::kRows})),
                  static_cast<const W*>(p.w) + first_col * p.k,
                  static_cast<int>(min(p.n - first_col, int64_t{Tile::kCols})),
                  p.k};
  float sum[kMine] = {};
  tile.multiply(sum);
#pragma unroll
  for (int i = 0; i < kMine; ++i)
    p.store(first_row + Tile::warp() + i * Tile::kWarps, first_col + Tile::lane(), sum[i]);
}

template <typename W, int kMine>
CudaStatus launch_few_rows(const Product& p, cudaStream_t stream) {
  using Tile = FewRows<W, kMine>;
  const cudaError_t error = cudaFuncSetAttribute(multiply_few_rows<W, kMine>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  multiply_few_rows<W, kMine>
      <<<dim3(blocks_of(p.n, Tile::kCols), blocks_of(p.m, Tile::kRows)), Tile::kThreads, Tile::kSharedBytes, stream>>>(
          p);
  return launch_status();
}

// With more, a tile of 64 rows reads the weights so much more seldom that it is faster.
constexpr int64_t kMostFewRows = 256;

template <typename W>
CudaStatus launch_chains(const Product& p, cudaStream_t stream) {
  const bool in_vectors = p.k % FewRows<W, 1>::kItems == 0 && reinterpret_cast<uintptr_t>(p.w) % 16 == 0;
  if (in_vectors && p.m <= 4) return launch_few_rows<W, 1>(p, stream);
  if (in_vectors && p.m <= 8) return launch_few_rows<W, 2>(p, stream);
  if (in_vectors && p.m <= kMostFewRows) return launch_few_rows<W, 4>(p, stream);
  const unsigned cols = blocks_of(p.n, kTileCols);
  if (p.m <= 32)
    multiply<W, 16><<<dim3(cols, blocks_of(p.m, 16)), kTileThreads, 0, stream>>>(p);
  else
    multiply<W, 64><<<dim3(cols, blocks_of(p.m, 64)), kTileThreads, 0, stream>>>(p);
  return launch_status();
}

// Float16 holds a row as well as bfloat16 or better where its largest magnitude lies between these. Other rows are
// computed in float32: they become zeros here and are marked.
constexpr float kMostOfHalf = 65504.0f, kLeastOfHalf = 1.0f / 4096;

__global__ void __launch_bounds__(kNarrowThreads)
    narrow_rows_in_range(const float* from, int64_t stride, int64_t cols, __half* to, uint8_t* is_beyond) {
  const int64_t row = blockIdx.x;
  from += row * stride;
  to += row * cols;
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
  float most = 0.0f, items[kNarrowItems];
  for (int64_t at = threadIdx.x * kNarrowItems; at < cols; at += kNarrowThreads * kNarrowItems) {
    load_items(from + at, aligned, items);
#pragma unroll
    for (float item : items) most = fmaxf(most, fabsf(item));
  }
  most = largest_of_block<kNarrowThreads>(most);
  const bool beyond = most > kMostOfHalf || (most > 0.0f && most < kLeastOfHalf);
  if (threadIdx.x == 0) is_beyond[row] = beyond;
  for (int64_t at = threadIdx.x * kNarrowItems; at < cols; at += kNarrowThreads * kNarrowItems) {
    load_items(from + at, aligned, items);
    *reinterpret_cast<uint4*>(to + at) = beyond ? uint4{0, 0, 0, 0} : pack_items<__half>(items);
  }
}

// Below it the launches cost more than the products.
constexpr int64_t kLeastNarrow = 32;  // of n and of k

bool may_narrow(const GemmArgs& args) {
  const PackedMatrix& w = *args.w;
  return args.allow_bf16 && (w.dtype() == DType::kBFloat16 || w.dtype() == DType::kFloat16) && w.n() >= kLeastNarrow &&
         w.k() >= kLeastNarrow && w.k() % kCublasLtStep == 0 && cublas_lt_runs();
}

// On the tensor cores; `done` is false where they cannot do this product and nothing has been written.
CudaStatus multiply_narrow(const GemmArgs& args, const Product& p, const CudaLaunch& launch, bool* done) {
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const bool is_half = args.w->dtype() == DType::kFloat16;
  auto* narrow = static_cast<char*>(launch.take(launch.workspace, p.m * p.k * 2));
  auto* beyond = is_half ? static_cast<uint8_t*>(launch.take(launch.workspace, p.m)) : nullptr;
  if (narrow == nullptr || (is_half && beyond == nullptr)) return "no scratch memory for activations (out of memory)";
  if (is_half)
    narrow_rows_in_range<<<static_cast<unsigned>(p.m), kNarrowThreads, 0, stream>>>(
        p.a, p.lda, p.k, reinterpret_cast<__half*>(narrow), beyond);
  else if (const CudaStatus status =
               launch_narrow_rows(p.a, p.lda, p.m, p.k, reinterpret_cast<__nv_bfloat16*>(narrow), stream))
    return status;
  const NarrowProduct product{args.w->dtype(), narrow, p.w, p.m, p.n, p.k, p.bias, p.c, p.ldc, p.accumulate};
  const CudaStatus status = multiply_by_cublas_lt(product, launch, done);
  if (status != nullptr || !*done || !is_half) return status;
  Product rest = p;  // onto what a row of zeros gave: the bias and the old C
  rest.bias = nullptr;
  rest.accumulate = true;
  rest.only_rows = beyond;
  return launch_chains<__half>(rest, stream);
}

CudaStatus gemm_on_device(const GemmArgs& args, const CudaLaunch& on) {
  if (args.m == 0) return nullptr;
  const PackedMatrix& w = *args.w;
  const Product p{args.a,    args.lda, args.m,   w.data(),        w.n(),  w.k(),
                  args.bias, args.c,   args.ldc, args.accumulate, nullptr};
  if (may_narrow(args)) {
    bool done = false;
    const CudaStatus status = multiply_narrow(args, p, on, &done);
    if (status != nullptr || done) return status;
  }
  const auto stream = static_cast<cudaStream_t>(on.stream);
  switch (w.dtype()) {
    case DType::kFloat32:
      return launch_chains<float>(p, stream);
    case DType::kBFloat16:
      return launch_chains<__nv_bfloat16>(p, stream);
    case DType::kFloat16:
      return launch_chains<__half>(p, stream);
    default:
      return "weights of this type do not run on the device (float32, bfloat16 and float16 do)";
  }
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(gemm, GemmArgs, gemm_on_device)
