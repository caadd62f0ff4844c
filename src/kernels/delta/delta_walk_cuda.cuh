// SPDX-License-Identifier: Apache-2.0
//
// The second kernel of the delta rule's prefill (delta_prefill_cuda.h): a block walks down one row and value head,
// kPairs * 16 value channels wide, chunk by chunk. Everything is transposed, [value][key] and [value][token], so that
// the sums of one product are the left factor of the next as they stand in the registers: a pair of warps has 16
// channels and asks no other for anything. The chain of three products that the next chunk waits for, by way of u to
// the state, is the first warp's; the second, which reads the state and u from shared memory, makes the outputs, and
// copies the chunks to come. For .cu files only.
#pragma once

#include "kernels/delta/delta_solve_cuda.cuh"

namespace coluber {

template <int kKeys, int kValues>
struct WalkStage {
  __nv_bfloat16 k[kTokens * kKeys], q[kTokens * kKeys];
  __nv_bfloat16 solved[kTokens * kTokens], scores[kTokens * kTokens];
  __nv_bfloat16 v[kTokens * kValues];
  TokenFactors tokens;
};
// What the first warp of a pair leaves for the second, as left factors lie in its lanes.
template <int kKeys>
struct WalkPair {
  uint4 state[kKeys / 16][32];
  uint4 u[kTokens / 16][32];  // then the outputs [token][value]
};
template <int kKeys, int kPairs, int kStages>
struct WalkShared {
  WalkStage<kKeys, kPairs * 16> stages[kStages];
  WalkPair<kKeys> pairs[kPairs];
};

// Two warps meet, or one leaves something there for the other; numbers from 1 on.
__device__ inline void meet(int barrier) { asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory"); }
__device__ inline void leave_at(int barrier) { asm volatile("bar.arrive %0, 64;" ::"r"(barrier) : "memory"); }

template <int kKeys, int kPairs, int kStages>
struct DeltaWalk {
  static constexpr int kKeySteps = kKeys / 16, kKeyTiles = kKeys / 8, kSteps = kTokens / 16, kTiles = kTokens / 8;
  static constexpr int kValues = kPairs * 16, kCopiers = kPairs * 32;
  using Stage = WalkStage<kKeys, kValues>;
  using Shared = WalkShared<kKeys, kPairs, kStages>;
  using TokenSums = float[kTiles][4];  // [value][token]
  const DeltaPrefillCudaArgs& args;
  Shared& shared;
  int head, first_value, lane, pair;
  bool is_first;
  const __nv_bfloat16 *q, *k, *v;
  __nv_bfloat16* y;

  __device__ DeltaWalk(const DeltaPrefillCudaArgs& args, Shared& shared) : args(args), shared(shared) {
    const int parts = static_cast<int>(args.value_dim + kValues - 1) / kValues;
    head = static_cast<int>(blockIdx.x) / parts;
    first_value = static_cast<int>(blockIdx.x) % parts * kValues;
    lane = static_cast<int>(threadIdx.x) % 32;
    pair = static_cast<int>(threadIdx.x) / 32 % kPairs;
    is_first = static_cast<int>(threadIdx.x) < kPairs * 32;
    const int64_t key_head = head / (args.num_v_heads / args.num_k_heads) * args.key_dim;
    q = static_cast<const __nv_bfloat16*>(args.q) + key_head;
    k = static_cast<const __nv_bfloat16*>(args.k) + key_head;
    v = static_cast<const __nv_bfloat16*>(args.v) + head * args.value_dim + first_value;
    y = static_cast<__nv_bfloat16*>(args.y) + head * args.value_dim + first_value;
  }
  __device__ int values() const { return static_cast<int>(min(int64_t{kValues}, args.value_dim - first_value)); }
  __device__ int u_is_there() const { return 1 + pair; }
  __device__ int state_is_read() const { return 1 + kPairs + pair; }

  // By the second warps.
  __device__ void ask(Stage& stage, int64_t at, int tokens, const ChunkFactors& factors) const {
    const int key_dim = static_cast<int>(args.key_dim), thread = static_cast<int>(threadIdx.x) - kCopiers;
    copy_tile_later<kCopiers, kTokens, kKeys>(stage.k, k + at * args.k_stride, args.k_stride, tokens, key_dim, thread);
    copy_tile_later<kCopiers, kTokens, kKeys>(stage.q, q + at * args.q_stride, args.q_stride, tokens, key_dim, thread);
    copy_tile_later<kCopiers, kTokens, kValues>(stage.v, v + at * args.v_stride, args.v_stride, tokens, values(),
                                                thread);
#pragma unroll
    for (int i = 0; i < kTokens * 8 / kCopiers; ++i) {
      const int row = i * (kCopiers / 8) + thread / 8, vector = thread % 8;
      if (vector * 8 > (row | 15)) continue;  // above the diagonal's blocks nothing is written or read
      const uint32_t to = tile_offset<kTokens>(row, vector);
      copy_16_later(shared_address(stage.solved) + to, factors.solved + row * kTokens + vector * 8, true);
      copy_16_later(shared_address(stage.scores) + to, factors.scores + row * kTokens + vector * 8, true);
    }
    constexpr int kVectors = sizeof(TokenFactors) / 16;
    for (int i = thread; i < kVectors; i += kCopiers)
      copy_16_later(shared_address(&stage.tokens) + static_cast<uint32_t>(i * 16),
                    reinterpret_cast<const char*>(&factors.tokens) + i * 16, true);
  }

  __device__ static float2 pair_at(const float* factors, int token) {
    return *reinterpret_cast<const float2*>(factors + token);
  }
  // sums [value][token] += left, 16 deep, times rows [depth] of a tile [token][depth], from tile `first` on.
  template <int kColumns>
  __device__ void multiply(TokenSums& sums, const uint32_t (&left)[4], const __nv_bfloat16* right, int step,
                           int first) const {
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      if (t < first) continue;
      uint32_t b[4];
      load_right<kColumns>(b, shared_address(right), t * 8, step * 2, lane);
      multiply_add(sums[t], sums[t + 1], left, b);
    }
  }
  __device__ static void load_left_of(uint32_t (&left)[4], const uint4& from) {
    const uint4 words = load_shared_16(shared_address(&from));
    left[0] = words.x;
    left[1] = words.y;
    left[2] = words.z;
    left[3] = words.w;
  }

  // The first warp's: its part of the state, and the same rounded, as a left factor.
  struct Chain {
    float state[kKeyTiles][4];
    uint32_t rounded[kKeySteps][4];
  };
  // f(element, the next one, their place in the slot, whether it is there)
  template <typename F>
  __device__ void for_each_pair(float (&state)[kKeyTiles][4], F&& f) const {
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int key = t * 8 + lane % 4 * 2, value = pair * 16 + lane / 4 + i * 4;
        f(state[t][i], state[t][i + 1], (head * args.value_dim + first_value + value) * args.key_dim + key,
          key < args.key_dim && value < values());
      }
  }
  __device__ void load_state(Chain& chain, const char* source) const {
    for_each_pair(chain.state, [&](float& s, float& next, int64_t at, bool is_there) {
      s = is_there ? load_element(source, args.state.dtype, at) : 0.0f;
      next = is_there ? load_element(source, args.state.dtype, at + 1) : 0.0f;
    });
  }
  __device__ void store_state(float (&state)[kKeyTiles][4], char* target) const {
    for_each_pair(state, [&](float& s, float& next, int64_t at, bool is_there) {
      if (!is_there) return;
      store_element(target, args.state.dtype, at, s);
      store_element(target, args.state.dtype, at + 1, next);
    });
  }
  __device__ void share_state(Chain& chain) const {
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s) {
      left_of_sums(chain.rounded[s], chain.state[s * 2], chain.state[s * 2 + 1]);
      store_shared_16(shared_address(&shared.pairs[pair].state[s][lane]), chain.rounded[s]);
    }
  }
  // v less what the state knows of it.
  __device__ void find_unknown(uint32_t (&unknown)[kSteps][4], const Stage& stage, const Chain& chain) const {
    TokenSums known = {};
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s) multiply<kKeys>(known, chain.rounded[s], stage.k, s, 0);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t values[4];
      load_left_transposed<kValues>(values, shared_address(stage.v), s * 16, pair * 2, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 factor = pair_at(stage.tokens.key, s * 16 + i / 2 * 8 + lane % 4 * 2);
        const float* sums = known[s * 2 + i / 2] + i % 2 * 2;
        float value[2];
        WordOf<__nv_bfloat16>::unpack(values[i], value);
        unknown[s][i] = pack_pair(fmaf(-factor.x, sums[0], value[0]), fmaf(-factor.y, sums[1], value[1]));
      }
    }
  }
  __device__ void advance(float (&state)[kKeyTiles][4], float decay, const uint32_t (&u)[kSteps][4],
                          const Stage& stage) const {
#pragma unroll
    for (auto& tile : state)
#pragma unroll
      for (float& s : tile) s *= decay;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int t = 0; t < kKeyTiles; t += 2) {
        uint32_t b[4];
        load_right_transposed<kKeys>(b, shared_address(stage.k), s * 16, t, lane);
        multiply_add(state[t], state[t + 1], u[s], b);
      }
  }
  // The state after the chunk's first `count` tokens.
  __device__ void leave_state(const Stage& stage, const Chain& chain, int count, char* target) const {
    float state[kKeyTiles][4];
    for (int t = 0; t < kKeyTiles; ++t)
      for (int i = 0; i < 4; ++i) state[t][i] = chain.state[t][i];
    const float* log_decay = stage.tokens.log_decay;
    const auto weight = [&](int token) {
      return token < count
                 ? exp2_fast(fminf(log_decay[count - 1] - log_decay[token], 0.0f)) * stage.tokens.key_norm[token]
                 : 0.0f;
    };
    uint32_t u[kSteps][4];
    for (int s = 0; s < kSteps; ++s) {
      load_left_of(u[s], shared.pairs[pair].u[s][lane]);
      for (int i = 0; i < 4; ++i) {
        const int token = s * 16 + i / 2 * 8 + lane % 4 * 2;
        u[s][i] = scale_pair(u[s][i], {weight(token), weight(token + 1)});
      }
    }
    advance(state, exp2_fast(log_decay[count - 1]), u, stage);
    store_state(state, target);
  }
  // One chunk of the chain; `leave` is called where u is in shared memory, not yet the outputs, and the state is the
  // chunk's first still.
  template <typename Leave>
  __device__ void follow(Chain& chain, const Stage& stage, Leave&& leave) const {
    TokenSums u = {};
    {
      uint32_t unknown[kSteps][4];
      find_unknown(unknown, stage, chain);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) multiply<kTokens>(u, unknown[s], stage.solved, s, s * 2);
    }
    uint32_t to_end[kSteps][4];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t left[4];
      left_of_sums(left, u[s * 2], u[s * 2 + 1]);
      store_shared_16(shared_address(&shared.pairs[pair].u[s][lane]), left);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 factor = pair_at(stage.tokens.key_to_end, s * 16 + i / 2 * 8 + lane % 4 * 2);
        const float* sums = u[s * 2 + i / 2] + i % 2 * 2;
        to_end[s][i] = pack_pair(sums[0] * factor.x, sums[1] * factor.y);
      }
    }
    leave();
    leave_at(u_is_there());
    advance(chain.state, exp2_fast(stage.tokens.log_decay[kTokens - 1]), to_end, stage);
    meet(state_is_read());
    share_state(chain);
  }

  // The second warp's.
  __device__ void put_outputs(const Stage& stage, int64_t at, int tokens) const {
    WalkPair<kKeys>& from = shared.pairs[pair];
    TokenSums sums = {};
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s) {
      uint32_t left[4];
      load_left_of(left, from.state[s][lane]);
      multiply<kKeys>(sums, left, stage.q, s, 0);
    }
    leave_at(state_is_read());
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float2 factor = pair_at(stage.tokens.query, t * 8 + lane % 4 * 2);
      sums[t][0] *= factor.x;
      sums[t][1] *= factor.y;
      sums[t][2] *= factor.x;
      sums[t][3] *= factor.y;
    }
    meet(u_is_there());
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t left[4];
      load_left_of(left, from.u[s][lane]);
      multiply<kTokens>(sums, left, stage.scores, s, s * 2);
    }
    __syncwarp();
    // [token][value], halves of a token's values swapped in every other four tokens: else two of eight meet in a bank.
    const uint32_t rows = shared_address(from.u);
    const auto place = [&](int token, int half) {
      return rows + static_cast<uint32_t>(token * 32 + ((half ^ (token >> 2 & 1)) << 4));
    };
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_shared(place(t * 8 + lane / 4, half) + static_cast<uint32_t>(lane % 4 * 4),
                     transposed_block(pack_pair(sums[t][half * 2], sums[t][half * 2 + 1])));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) {
      const int token = i * 16 + lane / 2, half = lane % 2, value = pair * 16 + half * 8;
      if (token < tokens && value < values())
        *reinterpret_cast<uint4*>(y + (at + token) * args.y_stride + value) = load_shared_16(place(token, half));
    }
  }

  __device__ void walk(const RowSlots& slots, int row, int begin, int end) const {
    const int chunks = (end - begin + kTokens - 1) / kTokens;
    const int64_t first_chunk = first_chunk_of(args, row);
    const auto ask_for = [&](int c) {
      if (c < chunks)
        ask(shared.stages[c % kStages], begin + c * kTokens, min(kTokens, end - begin - c * kTokens),
            factors_of(args, first_chunk + c, head));
      close_copies();
    };
    if (is_first) {
      int next = args.exports.starts != nullptr ? args.exports.starts[row] : 0;
      const int last = args.exports.starts != nullptr ? args.exports.starts[row + 1] : 0;
      Chain chain;
      load_state(chain, slots.source);
      share_state(chain);
      for (int c = 0; c < chunks; ++c) {
        const Stage& stage = shared.stages[c % kStages];
        __syncthreads();
        follow(chain, stage, [&] {
          for (; next < last && args.exports.offsets[next] <= (c + 1) * kTokens; ++next)
            leave_state(stage, chain, args.exports.offsets[next] - c * kTokens,
                        slot_at(args.state, args.exports.slots[next]));
        });
      }
      store_state(chain.state, slots.target);
    } else {
      for (int c = 0; c < kStages - 1; ++c) ask_for(c);
      for (int c = 0; c < chunks; ++c) {
        wait_for_copies<kStages - 2>();
        __syncthreads();
        ask_for(c + kStages - 1);
        put_outputs(shared.stages[c % kStages], begin + c * kTokens, end - begin - c * kTokens);
      }
    }
  }

  __device__ void write_zeros(int begin, int end) const {
    constexpr int kVectors = kValues / 8;
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * kVectors; i += 2 * kCopiers)
      if (i % kVectors * 8 < values())
        *reinterpret_cast<uint4*>(y + (begin + i / kVectors) * args.y_stride + i % kVectors * 8) = uint4{0, 0, 0, 0};
  }
};

template <int kKeys, int kPairs, int kStages>
__global__ void __launch_bounds__(kPairs * 64, 1) walk_delta(const __grid_constant__ DeltaPrefillCudaArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  const DeltaWalk<kKeys, kPairs, kStages> walk(args, *reinterpret_cast<WalkShared<kKeys, kPairs, kStages>*>(memory));
  const int row = static_cast<int>(blockIdx.y);
  const int begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) return walk.write_zeros(begin, end);
  walk.walk(slots, row, begin, end);
}

}  // namespace coluber
