// SPDX-License-Identifier: Apache-2.0
//
// The first kernel of the delta rule's prefill (delta_prefill_cuda.h): for each chunk and value head what does not
// depend on the state. A block has a chunk and head: it makes A and the scores of q and k, and T by blocks. The four
// blocks of 16 on the diagonal by forward substitution in float32, a warp a block and a lane a column; what is below
// them from [[P, 0], [B, Q]]^-1 = [[P^-1, 0], [-Q^-1 B P^-1, Q^-1]], for blocks of 16 and then of 32, on the tensor
// cores with operands rounded to 10 bits of mantissa. For .cu files only.
#pragma once

#include "kernels/cuda_mma.cuh"
#include "kernels/cuda_operation.cuh"
#include "kernels/delta/delta_prefill_cuda.h"

namespace coluber {

inline constexpr int kTokens = static_cast<int>(kDeltaChunk), kSolveThreads = 128;

// Of one chunk and head, in scratch memory.
struct TokenFactors {
  float log_decay[kTokens];   // log2, summed from the chunk's start
  float key_norm[kTokens];    // by what k is multiplied
  float key[kTokens];         // the same times the decay from the chunk's start
  float key_to_end[kTokens];  // times the decay to the chunk's end
  float query[kTokens];       // by what q is multiplied, times the decay from the chunk's start
};
struct ChunkFactors {
  __nv_bfloat16 solved[kTokens * kTokens];  // T diag(beta); blocks of 16 above the diagonal are not written
  __nv_bfloat16 scores[kTokens * kTokens];  // likewise
  TokenFactors tokens;
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
  float a[kTokens * kSolvePitch];  // A below the diagonal's blocks, then T; products on their way above them
  float log_decay[kTokens], beta[kTokens], key_norm[kTokens], query_norm[kTokens];
};

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
    shared.log_decay[lane * 2 + 1] = before;
    shared.log_decay[lane * 2] = (before - own) + g[0];
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
    const float key_norm = norm ? rsqrtf(key + args.norm_eps) : 1.0f;
    const float query_norm = norm ? args.scale * rsqrtf(query + args.norm_eps) : args.scale;
    const float log_decay = shared.log_decay[row], from_start = exp2_fast(log_decay);
    shared.key_norm[row] = key_norm;
    shared.query_norm[row] = query_norm;
    TokenFactors& of = factors.tokens;
    of.log_decay[row] = log_decay;
    of.key_norm[row] = key_norm;
    of.key[row] = from_start * key_norm;
    of.key_to_end[row] = exp2_fast(fminf(shared.log_decay[kTokens - 1] - log_decay, 0.0f)) * key_norm;
    of.query[row] = from_start * query_norm;
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
  // By way of the tile's rows of q, which no other warp reads, so that rows go out 16 bytes a lane.
  __device__ void put_scores(int tile) const {
    const uint32_t rows = shared_address(shared.q + tile * 16 * kKeys);
    scores(shared.q, tile, [&](int row, int column, float first, float second) {
      const float factor = shared.query_norm[row];
      const float a = column <= row ? first * factor * decay(row, column) : 0.0f;
      const float b = column + 1 <= row ? second * factor * decay(row, column + 1) : 0.0f;
      store_shared(rows + tile_offset_of_pair<kTokens>(row % 16, column), pack_pair(a, b));
    });
    __syncwarp();
    for (int i = lane; i < 16 * kTokens / 8; i += 32) {
      const int row = i / (kTokens / 8), vector = i % (kTokens / 8);
      if (vector / 2 <= tile)
        *reinterpret_cast<uint4*>(factors.scores + (tile * 16 + row) * kTokens + vector * 8) =
            load_shared_16(rows + tile_offset<kTokens>(row, vector));
    }
  }

  // The warp's block of 16 on the diagonal in place of A's.
  __device__ void invert_diagonal() const {
    float* block = shared.a + warp * 16 * (kSolvePitch + 1);
    const int column = lane % 16;
    float t[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sums[4] = {i == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < i; j += 4) {
        const float4 row = *reinterpret_cast<const float4*>(block + i * kSolvePitch + j);
        sums[0] = fmaf(-row.x, t[j], sums[0]);
        if (j + 1 < i) sums[1] = fmaf(-row.y, t[j + 1], sums[1]);
        if (j + 2 < i) sums[2] = fmaf(-row.z, t[j + 2], sums[2]);
        if (j + 3 < i) sums[3] = fmaf(-row.w, t[j + 3], sums[3]);
      }
      t[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    __syncwarp();
    if (lane < 16)
#pragma unroll
      for (int i = 0; i < 16; ++i) block[i * kSolvePitch + column] = t[i];
  }
  struct Place {
    int row, column;
  };
  // At `to` [16, 8]: `sign` times rows from `left` on times columns from `right` on, `steps` blocks of 8 deep.
  __device__ void multiply(Place to, float sign, Place left, Place right, int steps) const {
    const float* a = shared.a + (left.row + lane / 4) * kSolvePitch + left.column + lane % 4;
    const float* b = shared.a + (right.row + lane % 4) * kSolvePitch + right.column + lane / 4;
    float sums[4] = {};
    for (int s = 0; s < steps; ++s, a += 8, b += 8 * kSolvePitch) {
      const uint32_t rows[4] = {rounded_to_tf32(a[0]), rounded_to_tf32(a[8 * kSolvePitch]), rounded_to_tf32(a[4]),
                                rounded_to_tf32(a[8 * kSolvePitch + 4])};
      const uint32_t columns[2] = {rounded_to_tf32(b[0]), rounded_to_tf32(b[4 * kSolvePitch])};
      multiply_add_tf32(sums, rows, columns);
    }
    float* sum = shared.a + (to.row + lane / 4) * kSolvePitch + to.column + lane % 4 * 2;
    *reinterpret_cast<float2*>(sum) = {sign * sums[0], sign * sums[1]};
    *reinterpret_cast<float2*>(sum + 8 * kSolvePitch) = {sign * sums[2], sign * sums[3]};
  }
  // What is below the diagonal's blocks, which are T's already. A product stands above the diagonal until its next.
  __device__ void invert_below() const {
    const int first = warp / 2 * 32, second = first + 16, part = warp % 2 * 8;  // of the warp's block of 32
    multiply({first, second + part}, 1.0f, {second, first}, {first, first + part}, 2);
    __syncthreads();
    multiply({second, first + part}, -1.0f, {second, second}, {first, second + part}, 2);
    __syncthreads();
    const int column = warp * 8;  // of the lower left block of 32
    for (int row = 0; row < 32; row += 16)
      multiply({row, 32 + column}, 1.0f, {32 + row, column}, {column, column}, 4 - warp);
    __syncthreads();
    for (int row = 0; row < 32; row += 16)
      multiply({32 + row, column}, -1.0f, {32 + row, 32}, {0, 32 + column}, 2 + row / 8);
    __syncthreads();
  }
  __device__ void put_solved() const {
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kTokens / 8; i += kSolveThreads) {
      const int row = i / (kTokens / 8), column = i % (kTokens / 8) * 8;
      if (column > (row | 15)) continue;
      float values[8];
      load_floats(shared.a + row * kSolvePitch + column, values);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] *= shared.beta[column + j];
      store_floats(factors.solved + row * kTokens + column, values);
    }
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
  // Of ten blocks of 16 up to the diagonal, five for each warp.
  solver.put_a();
  solver.put_scores(3 - solver.warp);
  __syncwarp();
  solver.invert_diagonal();
  __syncthreads();
  solver.invert_below();
  solver.put_solved();
}

}  // namespace coluber
