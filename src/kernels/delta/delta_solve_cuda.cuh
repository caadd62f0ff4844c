// SPDX-License-Identifier: Apache-2.0
//
// The first kernel of the delta rule's prefill (delta_prefill_cuda.h): for each chunk and value head what does not
// depend on the state. A block has a chunk and head. Two warps solve for T, a column a thread, by forward substitution
// in float32, while the other two make the scores of q and k. For .cu files only.
#pragma once

#include "kernels/cuda_mma.cuh"
#include "kernels/cuda_operation.cuh"
#include "kernels/delta/delta_prefill_cuda.h"

namespace coluber {

inline constexpr int kTokens = static_cast<int>(kDeltaChunk), kSolveThreads = 128;

// Of one chunk and head, in scratch memory.
struct ChunkFactors {
  __nv_bfloat16 solved[kTokens * kTokens];  // T diag(beta); blocks of 16 above the diagonal are not written
  __nv_bfloat16 scores[kTokens * kTokens];  // likewise
  float log_decay[kTokens];                 // log2, summed from the chunk's start
  float key_norm[kTokens];                  // by what k and q are multiplied
  float query_norm[kTokens];
};
static_assert(sizeof(ChunkFactors) == kDeltaScratchOfChunk);

__device__ inline ChunkFactors& factors_of(const DeltaPrefillCudaArgs& args, int64_t chunk, int head) {
  return static_cast<ChunkFactors*>(args.scratch)[chunk * args.num_v_heads + head];
}
__device__ inline int64_t first_chunk_of(const DeltaPrefillCudaArgs& args, int row) {
  return args.query_start_loc[row] / kTokens + row;
}

constexpr int kSolvePitch = kTokens + 4;  // floats
template <int kKeys>
struct SolveShared {
  __nv_bfloat16 k[kTokens * kKeys], q[kTokens * kKeys];
  float a[kTokens * kSolvePitch];
  float log_decay[kTokens], beta[kTokens], key_norm[kTokens], query_norm[kTokens];
};

// Columns [kFirst, kFirst + 32) of T, whose rows before kFirst are zeros; `leave(row, value)` for each below.
template <int kFirst, typename Leave>
__device__ inline void solve_columns(const float* a, int column, Leave&& leave) {
  float t[kTokens - kFirst];
#pragma unroll
  for (int i = kFirst; i < kTokens; ++i) {
    float sums[4] = {i == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int j = kFirst; j < i; j += 4) {
      const float4 row = *reinterpret_cast<const float4*>(a + i * kSolvePitch + j);
      sums[0] = fmaf(-row.x, t[j - kFirst], sums[0]);
      if (j + 1 < i) sums[1] = fmaf(-row.y, t[j + 1 - kFirst], sums[1]);
      if (j + 2 < i) sums[2] = fmaf(-row.z, t[j + 2 - kFirst], sums[2]);
      if (j + 3 < i) sums[3] = fmaf(-row.w, t[j + 3 - kFirst], sums[3]);
    }
    t[i - kFirst] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    leave(i, t[i - kFirst]);
  }
}

template <int kKeys>
struct ChunkSolver {
  static constexpr int kKeySteps = kKeys / 16;
  const DeltaPrefillCudaArgs& args;
  SolveShared<kKeys>& shared;
  ChunkFactors& factors;
  int head, lane, warp;

  // What the first warp knows of tokens [begin, begin + tokens), two a lane.
  __device__ void gates(int begin, int tokens) const {
    float g[2], beta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool is_there = lane * 2 + i < tokens;
      g[i] = is_there ? gate_of(begin + lane * 2 + i) : 0.0f;
      beta[i] = is_there ? beta_of(begin + lane * 2 + i) : 0.0f;
    }
    float before = g[0] + g[1];
    const float own = before;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, before, static_cast<unsigned>(offset));
      if (lane >= offset) before += other;
    }
    shared.log_decay[lane * 2 + 1] = factors.log_decay[lane * 2 + 1] = before;
    shared.log_decay[lane * 2] = factors.log_decay[lane * 2] = (before - own) + g[0];
    shared.beta[lane * 2] = beta[0];
    shared.beta[lane * 2 + 1] = beta[1];
  }
  __device__ float gate_of(int token) const {
    if (args.gate == nullptr) return 0.0f;
    const float raw = to_float(static_cast<const __nv_bfloat16*>(args.gate)[token * args.gate_stride + head]) +
                      (args.gate_bias != nullptr ? args.gate_bias[head] : 0.0f);
    const float rate = args.gate_rate[head];
    const float g = args.gate_lower_bound < 0 ? args.gate_lower_bound * sigmoid(rate * raw) : -rate * softplus(raw);
    return g * 1.44269504f;
  }
  __device__ float beta_of(int token) const {
    if (args.beta == nullptr) return args.beta_scale;
    return args.beta_scale *
           sigmoid(to_float(static_cast<const __nv_bfloat16*>(args.beta)[token * args.beta_stride + head]));
  }

  // Two lanes a row of q and k, sixteen rows a warp.
  __device__ void norms() const {
    const int row = warp * 16 + lane / 2;
    float squares[2] = {0.0f, 0.0f};
    for (int vector = lane % 2; vector < kKeys / 8; vector += 2)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 words =
            load_shared_16(shared_address(i == 0 ? shared.k : shared.q) + tile_offset<kKeys>(row, vector));
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          float pair[2];
          WordOf<__nv_bfloat16>::unpack(word[w], pair);
          squares[i] = fmaf(pair[0], pair[0], fmaf(pair[1], pair[1], squares[i]));
        }
      }
    const float key = sum_over_lanes<2>(squares[0]), query = sum_over_lanes<2>(squares[1]);
    if (lane % 2 != 0) return;
    const bool norm = args.norm_eps > 0;
    shared.key_norm[row] = factors.key_norm[row] = norm ? rsqrtf(key + args.norm_eps) : 1.0f;
    shared.query_norm[row] = factors.query_norm[row] = norm ? args.scale * rsqrtf(query + args.norm_eps) : args.scale;
  }

  // leave(row, column, score of the column, of the next one) over blocks of 16 up to the diagonal of rows `tile` * 16.
  template <typename Leave>
  __device__ void scores(const __nv_bfloat16* rows, int tile, Leave&& leave) const {
    uint32_t left[kKeySteps][4];
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s) load_left<kKeys>(left[s], shared_address(rows), tile * 16, s * 2, lane);
    for (int block = 0; block <= tile; ++block) {
      float sums[2][4] = {};
#pragma unroll
      for (int s = 0; s < kKeySteps; ++s) {
        uint32_t right[4];
        load_right<kKeys>(right, shared_address(shared.k), block * 16, s * 2, lane);
        multiply_add(sums[0], sums[1], left[s], right);
      }
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int i = 0; i < 4; i += 2)
          leave(tile * 16 + lane / 4 + i / 2 * 8, block * 16 + t * 8 + lane % 4 * 2, sums[t][i], sums[t][i + 1]);
    }
  }
  __device__ float decay(int row, int column) const {
    return exp2_fast(fminf(shared.log_decay[row] - shared.log_decay[column], 0.0f)) * shared.key_norm[column];
  }
  __device__ void put_a() const {
    scores(shared.k, warp, [&](int row, int column, float first, float second) {
      const float factor = shared.beta[row] * shared.key_norm[row];
      float* a = shared.a + row * kSolvePitch + column;
      a[0] = column < row ? first * factor * decay(row, column) : 0.0f;
      a[1] = column + 1 < row ? second * factor * decay(row, column + 1) : 0.0f;
    });
  }
  __device__ void put_scores(int tile) const {
    scores(shared.q, tile, [&](int row, int column, float first, float second) {
      const float factor = shared.query_norm[row];
      const float a = column <= row ? first * factor * decay(row, column) : 0.0f;
      const float b = column + 1 <= row ? second * factor * decay(row, column + 1) : 0.0f;
      *reinterpret_cast<uint32_t*>(factors.scores + row * kTokens + column) = pack_pair(a, b);
    });
  }
  __device__ void put_solved() const {
    const int column = warp * 32 + lane;
    const float beta = shared.beta[column];
    const auto leave = [&](int row, float value) {
      factors.solved[row * kTokens + column] = __float2bfloat16_rn(value * beta);
    };
    if (warp == 0) solve_columns<0>(shared.a, column, leave);
    if (warp == 1) solve_columns<32>(shared.a, column, leave);
  }
};

// The row that chunk `chunk` belongs to, if it is there.
__device__ inline int row_of_chunk(const DeltaPrefillCudaArgs& args, int64_t chunk) {
  int first = 0, last = static_cast<int>(args.rows) - 1;
  while (first < last) {
    const int middle = (first + last + 1) / 2;
    if (first_chunk_of(args, middle) <= chunk) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return first;
}

template <int kKeys>
__global__ void __launch_bounds__(kSolveThreads) solve_chunks(const __grid_constant__ DeltaPrefillCudaArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<SolveShared<kKeys>*>(memory);
  const int head = static_cast<int>(blockIdx.x), row = row_of_chunk(args, blockIdx.y);
  const int64_t begin = args.query_start_loc[row] + (blockIdx.y - first_chunk_of(args, row)) * kTokens;
  const int tokens = static_cast<int>(min(args.query_start_loc[row + 1] - begin, int64_t{kTokens}));
  if (tokens <= 0 || row_slots(args.state, row).target == nullptr) return;
  const ChunkSolver<kKeys> solver = {args,
                                     shared,
                                     factors_of(args, blockIdx.y, head),
                                     head,
                                     static_cast<int>(threadIdx.x) % 32,
                                     static_cast<int>(threadIdx.x) / 32};
  const int key_dim = static_cast<int>(args.key_dim);
  const int64_t key_head = head / (args.num_v_heads / args.num_k_heads) * args.key_dim;
  copy_tile_later<kSolveThreads, kTokens, kKeys>(
      shared.k, static_cast<const __nv_bfloat16*>(args.k) + begin * args.k_stride + key_head, args.k_stride, tokens,
      key_dim);
  copy_tile_later<kSolveThreads, kTokens, kKeys>(
      shared.q, static_cast<const __nv_bfloat16*>(args.q) + begin * args.q_stride + key_head, args.q_stride, tokens,
      key_dim);
  close_copies();
  if (solver.warp == 0) solver.gates(static_cast<int>(begin), tokens);
  wait_for_copies<0>();
  __syncthreads();
  solver.norms();
  __syncthreads();
  solver.put_a();
  __syncthreads();
  if (solver.warp < 2) {
    solver.put_solved();
  } else {
    // Ten blocks of 16 in all, five each.
    solver.put_scores(solver.warp - 2);
    solver.put_scores(5 - solver.warp);
  }
}

}  // namespace coluber
