// SPDX-License-Identifier: Apache-2.0
// Experts on the device, without a word to the host: one block groups the step's rows by expert and cuts them into
// tiles, products run a grid for as many tiles as there can be, and the sum takes each token's rows in the order of its
// choices. Which place a row gets among its expert's is left to chance; its bits are those of the processor's product
// at any.
#include "kernels/gemm/gemm_tile_cuda.cuh"
#include "kernels/moe/activation.h"
#include "kernels/moe/experts.h"

extern "C" coluber::CudaStatus coluber_cuda_run_activate(const void* args, const coluber::CudaLaunch* launch);
extern "C" coluber::CudaStatus coluber_cuda_run_combine_experts(const void* args, const coluber::CudaLaunch* launch);

namespace coluber {
namespace {

constexpr int kGroupThreads = 1024, kThreads = 256;

struct Tile {
  int32_t expert, first_row, rows;
};

// Rows are those of all tokens' choices, the rows of one expert together.
struct Grouping {
  int32_t* next = nullptr;    // [E] scratch
  int32_t* places = nullptr;  // [T, top_k] row of each choice; -1: no expert
  int32_t* tokens = nullptr;  // [T * top_k] token of each row
  Tile* tiles = nullptr;
  int32_t* num_tiles = nullptr;
};

// What the threads before this one have, and all of them together.
__device__ inline int2 sum_before(int2 own, int2* shared, int2& total) {
  const int thread = threadIdx.x;
  shared[thread] = own;
  __syncthreads();
  for (int offset = 1; offset < kGroupThreads; offset *= 2) {
    const int2 other = thread >= offset ? shared[thread - offset] : int2{0, 0};
    __syncthreads();
    shared[thread].x += other.x;
    shared[thread].y += other.y;
    __syncthreads();
  }
  total = shared[kGroupThreads - 1];
  return {shared[thread].x - own.x, shared[thread].y - own.y};
}

__global__ void __launch_bounds__(kGroupThreads)
    group_by_expert(const int32_t* ids, int64_t choices, int top_k, int experts, int tile_rows, Grouping grouping) {
  __shared__ int2 shared[kGroupThreads];
  const int thread = threadIdx.x, share = (experts + kGroupThreads - 1) / kGroupThreads;
  const int begin = min(thread * share, experts), end = min(begin + share, experts);
  for (int e = begin; e < end; ++e) grouping.next[e] = 0;
  __syncthreads();
  for (int64_t i = thread; i < choices; i += kGroupThreads)
    if (ids[i] < experts) atomicAdd(&grouping.next[ids[i]], 1);
  __syncthreads();
  int2 own{0, 0}, total;  // rows and tiles
  for (int e = begin; e < end; ++e) {
    own.x += grouping.next[e];
    own.y += (grouping.next[e] + tile_rows - 1) / tile_rows;
  }
  int2 at = sum_before(own, shared, total);
  for (int e = begin; e < end; ++e) {
    const int rows = grouping.next[e];
    grouping.next[e] = at.x;
    for (int row = 0; row < rows; row += tile_rows)
      grouping.tiles[at.y++] = {e, at.x + row, min(tile_rows, rows - row)};
    at.x += rows;
  }
  if (thread == 0) *grouping.num_tiles = total.y;
  __syncthreads();
  for (int64_t i = thread; i < choices; i += kGroupThreads) {
    if (ids[i] >= experts) {
      grouping.places[i] = -1;
      continue;
    }
    const int32_t row = atomicAdd(&grouping.next[ids[i]], 1);
    grouping.places[i] = row;
    grouping.tokens[row] = static_cast<int32_t>(i / top_k);
  }
}

enum class Matrix { kW1, kW3, kW2 };

struct Product {
  const float* a;           // [tokens or rows, K]
  const int32_t* token_of;  // of each row, or null: a has the rows themselves
  float* c;                 // [rows, N]
  const ExpertOnDevice* experts;
  Matrix matrix;
  int64_t n, k;
};

__device__ inline const void* weight_of(const Product& p, const ExpertOnDevice& expert, DType& dtype) {
  switch (p.matrix) {
    case Matrix::kW1:
      dtype = expert.w1_dtype;
      return expert.w1;
    case Matrix::kW3:
      dtype = expert.w3_dtype;
      return expert.w3;
    case Matrix::kW2:
      dtype = expert.w2_dtype;
      return expert.w2;
  }
  return nullptr;
}

template <int kRows>
__global__ void __launch_bounds__(kTileThreads)
    multiply_experts(const __grid_constant__ Product p, const Tile* tiles, const int32_t* num_tiles) {
  constexpr int kMine = kRows / 16;
  if (static_cast<int64_t>(blockIdx.x) >= *num_tiles) return;
  const Tile tile = tiles[blockIdx.x];
  const int64_t first_col = blockIdx.y * int64_t{kTileCols};
  const float* rows[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int row = loaded_row(i);
    rows[i] = nullptr;
    if (row >= tile.rows) continue;
    const int64_t at = tile.first_row + row;
    rows[i] = p.a + (p.token_of != nullptr ? p.token_of[at] : at) * p.k;
  }
  float sum[kMine][4] = {};
  DType dtype;
  const void* w = weight_of(p, p.experts[tile.expert], dtype);
  if (dtype == DType::kFloat32)
    multiply_tile<float, kRows>(rows, static_cast<const float*>(w), p.n, p.k, first_col, sum);
  else if (dtype == DType::kFloat16)
    multiply_tile<__half, kRows>(rows, static_cast<const __half*>(w), p.n, p.k, first_col, sum);
  else
    multiply_tile<__nv_bfloat16, kRows>(rows, static_cast<const __nv_bfloat16*>(w), p.n, p.k, first_col, sum);
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int row = computed_row<kRows>(i);
    for (int j = 0; j < 4; ++j) {
      const int64_t col = first_col + computed_col(j);
      if (row < tile.rows && col < p.n) p.c[(tile.first_row + row) * p.n + col] = sum[i][j];
    }
  }
}

template <typename T>
T* take(const CudaLaunch& launch, int64_t count) {
  return static_cast<T*>(launch.take(launch.workspace, count * static_cast<int64_t>(sizeof(T))));
}

CudaStatus experts_on_device(const ExpertsArgs& args, const CudaLaunch& launch) {
  if (args.num_tokens == 0) return nullptr;
  if (args.on_device == nullptr) return "experts whose weights are not on the device";
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const int64_t experts = static_cast<int64_t>(args.experts.size()), rows = args.num_tokens * args.top_k;
  const int64_t width = args.experts[0].w1.k(), inner = args.experts[0].w1.n();
  const bool gated = args.experts[0].w3.n() > 0;
  const int tile_rows = rows > 32 * experts ? 64 : 16;
  const int64_t most_tiles = rows / tile_rows + (rows < experts ? rows : experts);
  Grouping grouping{take<int32_t>(launch, experts), take<int32_t>(launch, rows), take<int32_t>(launch, rows),
                    take<Tile>(launch, most_tiles), take<int32_t>(launch, 1)};
  float* gate = take<float>(launch, rows * inner);
  float* up = gated ? take<float>(launch, rows * inner) : nullptr;
  float* out = take<float>(launch, rows * width);
  if (grouping.next == nullptr || grouping.places == nullptr || grouping.tokens == nullptr ||
      grouping.tiles == nullptr || grouping.num_tiles == nullptr || gate == nullptr || (gated && up == nullptr) ||
      out == nullptr)
    return "no memory left for the rows of the experts";
  group_by_expert<<<1, kGroupThreads, 0, stream>>>(args.expert_ids, rows, static_cast<int>(args.top_k),
                                                   static_cast<int>(experts), tile_rows, grouping);
  const auto multiply = [&](const Product& p) {
    const dim3 grid(static_cast<unsigned>(most_tiles), blocks_of(p.n, kTileCols));
    if (tile_rows == 16)
      multiply_experts<16><<<grid, kTileThreads, 0, stream>>>(p, grouping.tiles, grouping.num_tiles);
    else
      multiply_experts<64><<<grid, kTileThreads, 0, stream>>>(p, grouping.tiles, grouping.num_tiles);
  };
  multiply({args.x, grouping.tokens, gate, args.on_device, Matrix::kW1, inner, width});
  if (gated) multiply({args.x, grouping.tokens, up, args.on_device, Matrix::kW3, inner, width});
  if (const CudaStatus status = launch_status()) return status;
  // Rows of no expert too: nobody reads what they come to.
  const ActivateArgs activation{args.activation, gate, inner, up, inner, gate, inner, rows, inner, args.limit};
  if (const CudaStatus status = coluber_cuda_run_activate(&activation, &launch)) return status;
  multiply({gate, nullptr, out, args.on_device, Matrix::kW2, width, inner});
  if (const CudaStatus status = launch_status()) return status;
  const CombineExpertsArgs sum{out,        grouping.places, args.weights,   args.y, args.num_tokens,
                               args.top_k, width,           args.accumulate};
  return coluber_cuda_run_combine_experts(&sum, &launch);
}

__global__ void combine_elements(const __grid_constant__ CombineExpertsArgs args) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= args.num_tokens * args.width) return;
  const int64_t t = i / args.width, d = i % args.width;
  float sum = 0.0f;
  for (int64_t j = 0; j < args.top_k; ++j) {
    const int64_t place = args.places[t * args.top_k + j];
    if (place >= 0) sum = fmaf(args.weights[t * args.top_k + j], args.rows[place * args.width + d], sum);
  }
  args.y[i] = args.accumulate ? args.y[i] + sum : sum;
}

CudaStatus combine_on_device(const CombineExpertsArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0 || args.width == 0) return nullptr;
  combine_elements<<<blocks_of(args.num_tokens * args.width, kThreads), kThreads, 0, stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(run_experts, ExpertsArgs, experts_on_device)
COLUBER_CUDA_OPERATION(combine_experts, CombineExpertsArgs, combine_on_device)
