// SPDX-License-Identifier: Apache-2.0
//
// The second kernel of the delta rule's prefill (delta_prefill_cuda.h): a block walks down one row and value head,
// kWalkValues value channels wide, chunk by chunk; its state [key][value] never leaves its registers between the row's
// first token and its last, 16 keys a warp. In a chunk warps 0 to 3 have 16 tokens each on the way to u, warps 4 to 7
// the same tokens' y; all advance the state. Three products in a row are what a chunk waits for, hence few value
// channels a block and the next chunk on its way meanwhile. For .cu files only.
#pragma once

#include "kernels/delta/delta_solve_cuda.cuh"

namespace coluber {

inline constexpr int kWalkThreads = 256, kWalkValues = 32;

template <int kKeys>
struct WalkStage {
  __nv_bfloat16 k[kTokens * kKeys], q[kTokens * kKeys];
  __nv_bfloat16 solved[kTokens * kTokens], scores[kTokens * kTokens];
  __nv_bfloat16 v[kTokens * kWalkValues];
  float log_decay[kTokens], key_norm[kTokens], query_norm[kTokens];
};
template <int kKeys>
struct WalkShared {
  WalkStage<kKeys> stages[2];
  __nv_bfloat16 state[2][kKeys * kWalkValues];    // [key][value], the one that a chunk reads and the one it leaves
  __nv_bfloat16 unknown[kTokens * kWalkValues];   // v less what the state knows
  __nv_bfloat16 u[kTokens * kWalkValues];         // [token][value]
  __nv_bfloat16 u_to_end[kTokens * kWalkValues];  // times the decay to the chunk's end and the key's norm
};

template <int kKeys>
struct DeltaWalk {
  static constexpr int kKeySteps = kKeys / 16, kTiles = kWalkValues / 8;
  using Sums = float[kTiles][4];
  const DeltaPrefillCudaArgs& args;
  WalkShared<kKeys>& shared;
  int head, first_value, lane, warp, tile;
  const __nv_bfloat16 *q, *k, *v;
  __nv_bfloat16* y;
  Sums state;

  __device__ DeltaWalk(const DeltaPrefillCudaArgs& args, WalkShared<kKeys>& shared) : args(args), shared(shared) {
    const int parts = static_cast<int>(args.value_dim + kWalkValues - 1) / kWalkValues;
    head = static_cast<int>(blockIdx.x) / parts;
    first_value = static_cast<int>(blockIdx.x) % parts * kWalkValues;
    lane = static_cast<int>(threadIdx.x) % 32;
    warp = static_cast<int>(threadIdx.x) / 32;
    tile = warp % 4;
    const int64_t key_head = head / (args.num_v_heads / args.num_k_heads) * args.key_dim;
    q = static_cast<const __nv_bfloat16*>(args.q) + key_head;
    k = static_cast<const __nv_bfloat16*>(args.k) + key_head;
    v = static_cast<const __nv_bfloat16*>(args.v) + head * args.value_dim + first_value;
    y = static_cast<__nv_bfloat16*>(args.y) + head * args.value_dim + first_value;
  }
  __device__ int values() const { return static_cast<int>(min(int64_t{kWalkValues}, args.value_dim - first_value)); }
  __device__ bool has_keys() const { return kKeys == 128 || warp < kKeySteps; }

  __device__ void ask(WalkStage<kKeys>& stage, int64_t at, int tokens, const ChunkFactors& factors) const {
    const int key_dim = static_cast<int>(args.key_dim), thread = static_cast<int>(threadIdx.x);
    copy_tile_later<kWalkThreads, kTokens, kKeys>(stage.k, k + at * args.k_stride, args.k_stride, tokens, key_dim);
    copy_tile_later<kWalkThreads, kTokens, kKeys>(stage.q, q + at * args.q_stride, args.q_stride, tokens, key_dim);
    copy_tile_later<kWalkThreads, kTokens, kWalkValues>(stage.v, v + at * args.v_stride, args.v_stride, tokens,
                                                        values());
#pragma unroll
    for (int i = 0; i < kTokens * 8 / kWalkThreads; ++i) {
      const int row = i * (kWalkThreads / 8) + thread / 8, vector = thread % 8;
      if (vector * 8 > (row | 15)) continue;  // above the diagonal's blocks nothing is written or read
      const uint32_t to = tile_offset<kTokens>(row, vector);
      copy_16_later(shared_address(stage.solved) + to, factors.solved + row * kTokens + vector * 8, true);
      copy_16_later(shared_address(stage.scores) + to, factors.scores + row * kTokens + vector * 8, true);
    }
    if (thread < 3 * kTokens / 4)
      copy_16_later(shared_address(stage.log_decay + thread * 4), factors.log_decay + thread * 4, true);
    close_copies();
  }

  // The state's element, [key][value] as sums of products are.
  __device__ int key_of(int element) const { return warp * 16 + lane / 4 + element / 2 * 8; }
  __device__ int column_of(int j) const { return j * 8 + lane % 4 * 2; }
  template <typename F>
  __device__ void for_each_element(Sums& sums, F&& f) const {
    if (!has_keys()) return;
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key_of(i), value = first_value + column_of(j) + i % 2;
        f(sums[j][i], (head * args.value_dim + value) * args.key_dim + key,
          key < args.key_dim && value < args.value_dim);
      }
  }
  __device__ void load_state(const char* source) {
    for_each_element(state, [&](float& s, int64_t at, bool is_there) {
      s = is_there ? load_element(source, args.state.dtype, at) : 0.0f;
    });
  }
  __device__ void store_state(Sums& sums, char* target) const {
    for_each_element(sums, [&](float& s, int64_t at, bool is_there) {
      if (is_there) store_element(target, args.state.dtype, at, s);
    });
  }
  // Rows [first, first + 16) of sums into a tile of kWalkValues columns.
  __device__ void share(const Sums& sums, const __nv_bfloat16* to, int first, float upper, float lower) const {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const uint32_t tile = shared_address(to);
      store_shared(tile + tile_offset_of_pair<kWalkValues>(first + lane / 4, column_of(j)),
                   pack_pair(sums[j][0] * upper, sums[j][1] * upper));
      store_shared(tile + tile_offset_of_pair<kWalkValues>(first + lane / 4 + 8, column_of(j)),
                   pack_pair(sums[j][2] * lower, sums[j][3] * lower));
    }
  }
  __device__ void share_state(int buffer) const {
    if (has_keys()) share(state, shared.state[buffer], warp * 16, 1.0f, 1.0f);
  }

  // sums += rows `first` to `first` + 16 of left, kSteps blocks of 16 deep, times right [depth][kWalkValues].
  template <int kColumns>
  __device__ void multiply(Sums& sums, const __nv_bfloat16* left, int first, const __nv_bfloat16* right,
                           int steps) const {
#pragma unroll
    for (int s = 0; s < kColumns / 16; ++s) {
      if (s >= steps) break;
      uint32_t a[4];
      load_left<kColumns>(a, shared_address(left), first, s * 2, lane);
      multiply_columns(sums, a, right, s * 16);
    }
  }
  __device__ void multiply_columns(Sums& sums, const uint32_t (&left)[4], const __nv_bfloat16* right, int depth) const {
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      uint32_t b[4];
      load_right_transposed<kWalkValues>(b, shared_address(right), depth, j, lane);
      multiply_add(sums[j], sums[j + 1], left, b);
    }
  }

  __device__ void solve_u(const WalkStage<kKeys>& stage, int buffer) const {
    Sums sums = {};
    multiply<kKeys>(sums, stage.k, tile * 16, shared.state[buffer], kKeySteps);
    const int row = tile * 16 + lane / 4;
    const float upper = exp2_fast(stage.log_decay[row]) * stage.key_norm[row];
    const float lower = exp2_fast(stage.log_decay[row + 8]) * stage.key_norm[row + 8];
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        float value[2];
        WordOf<__nv_bfloat16>::unpack(
            load_shared(shared_address(stage.v) + tile_offset_of_pair<kWalkValues>(row + i * 4, column_of(j))), value);
        const float known = i == 0 ? upper : lower;
        sums[j][i] = fmaf(-known, sums[j][i], value[0]);
        sums[j][i + 1] = fmaf(-known, sums[j][i + 1], value[1]);
      }
    share(sums, shared.unknown, tile * 16, 1.0f, 1.0f);
    asm volatile("bar.sync 1, 128;" ::: "memory");  // warps 0 to 3
    Sums u = {};
    multiply<kTokens>(u, stage.solved, tile * 16, shared.unknown, tile + 1);
    share(u, shared.u, tile * 16, 1.0f, 1.0f);
    share(u, shared.u_to_end, tile * 16, to_end(stage, row, kTokens - 1), to_end(stage, row + 8, kTokens - 1));
  }
  // What u of `token` is multiplied by in the state after token `last`.
  __device__ static float to_end(const WalkStage<kKeys>& stage, int token, int last) {
    return exp2_fast(fminf(stage.log_decay[last] - stage.log_decay[token], 0.0f)) * stage.key_norm[token];
  }

  __device__ void finish_outputs(WalkStage<kKeys>& stage, Sums& sums, int64_t at, int tokens) const {
    const int row = tile * 16 + lane / 4;
    const float upper = exp2_fast(stage.log_decay[row]) * stage.query_norm[row];
    const float lower = exp2_fast(stage.log_decay[row + 8]) * stage.query_norm[row + 8];
#pragma unroll
    for (auto& sum : sums) {
      sum[0] *= upper;
      sum[1] *= upper;
      sum[2] *= lower;
      sum[3] *= lower;
    }
    multiply<kTokens>(sums, stage.scores, tile * 16, shared.u, tile + 1);
    // By way of the warp's own rows of q, which no other warp reads, so that rows go out 16 bytes a lane.
    const __nv_bfloat16* rows = stage.q + tile * 16 * kKeys;
    __syncwarp();
    share(sums, rows, 0, 1.0f, 1.0f);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own = i * 8 + lane / 4, vector = lane % 4, token = tile * 16 + own;
      if (token < tokens && vector * 8 < values())
        *reinterpret_cast<uint4*>(y + (at + token) * args.y_stride + vector * 8) =
            load_shared_16(shared_address(rows) + tile_offset<kWalkValues>(own, vector));
    }
  }

  __device__ void decay_state(Sums& sums, float decay) const {
#pragma unroll
    for (auto& sum : sums)
#pragma unroll
      for (float& s : sum) s *= decay;
  }
  __device__ void advance_state(const WalkStage<kKeys>& stage) {
    if (!has_keys()) return;
    decay_state(state, exp2_fast(stage.log_decay[kTokens - 1]));
#pragma unroll
    for (int s = 0; s < kTokens / 16; ++s) {
      uint32_t left[4];
      load_left_transposed<kKeys>(left, shared_address(stage.k), s * 16, warp * 2, lane);
      multiply_columns(state, left, shared.u_to_end, s * 16);
    }
  }
  // The state after the chunk's first `count` tokens.
  __device__ void leave_state(const WalkStage<kKeys>& stage, int count, char* target) const {
    if (!has_keys()) return;
    Sums sums;
    for (int j = 0; j < kTiles; ++j)
      for (int i = 0; i < 4; ++i) sums[j][i] = state[j][i];
    decay_state(sums, exp2_fast(stage.log_decay[count - 1]));
    const auto weight = [&](int token) { return token < count ? to_end(stage, token, count - 1) : 0.0f; };
    for (int s = 0; s < kTokens / 16; ++s) {
      uint32_t left[4];
      load_left_transposed<kKeys>(left, shared_address(stage.k), s * 16, warp * 2, lane);
      const int token = s * 16 + lane % 4 * 2;
      const float2 first = {weight(token), weight(token + 1)}, second = {weight(token + 8), weight(token + 9)};
      left[0] = scale_pair(left[0], first);
      left[1] = scale_pair(left[1], first);
      left[2] = scale_pair(left[2], second);
      left[3] = scale_pair(left[3], second);
      multiply_columns(sums, left, shared.u, s * 16);
    }
    store_state(sums, target);
  }

  __device__ void walk(const RowSlots& slots, int row, int begin, int end) {
    const int chunks = (end - begin + kTokens - 1) / kTokens;
    const int64_t first_chunk = first_chunk_of(args, row);
    int next = args.exports.starts != nullptr ? args.exports.starts[row] : 0;
    const int last = args.exports.starts != nullptr ? args.exports.starts[row + 1] : 0;
    if (chunks > 0) ask(shared.stages[0], begin, min(kTokens, end - begin), factors_of(args, first_chunk, head));
    load_state(slots.source);
    share_state(0);
    for (int c = 0; c < chunks; ++c) {
      WalkStage<kKeys>& stage = shared.stages[c & 1];
      const int at = begin + c * kTokens, after = at + kTokens;
      wait_for_copies<0>();
      __syncthreads();
      if (c + 1 < chunks)
        ask(shared.stages[(c + 1) & 1], after, min(kTokens, end - after), factors_of(args, first_chunk + c + 1, head));
      Sums sums = {};
      if (warp < 4) {
        solve_u(stage, c & 1);
      } else {
        multiply<kKeys>(sums, stage.q, tile * 16, shared.state[c & 1], kKeySteps);
      }
      __syncthreads();
      for (; next < last && args.exports.offsets[next] <= after - begin; ++next)
        leave_state(stage, args.exports.offsets[next] - (at - begin), slot_at(args.state, args.exports.slots[next]));
      advance_state(stage);
      share_state((c + 1) & 1);
      if (warp >= 4) finish_outputs(stage, sums, at, end - at);
    }
    store_state(state, slots.target);
  }

  __device__ void write_zeros(int begin, int end) const {
    constexpr int kVectors = kWalkValues / 8;
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * kVectors; i += kWalkThreads)
      if (i % kVectors * 8 < values())
        *reinterpret_cast<uint4*>(y + (begin + i / kVectors) * args.y_stride + i % kVectors * 8) = uint4{0, 0, 0, 0};
  }
};

template <int kKeys>
__global__ void __launch_bounds__(kWalkThreads, 1) walk_delta(const __grid_constant__ DeltaPrefillCudaArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  DeltaWalk<kKeys> walk(args, *reinterpret_cast<WalkShared<kKeys>*>(memory));
  const int row = static_cast<int>(blockIdx.y);
  const int begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) return walk.write_zeros(begin, end);
  walk.walk(slots, row, begin, end);
}

}  // namespace coluber
