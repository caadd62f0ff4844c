// SPDX-License-Identifier: Apache-2.0
//
// Recurrences whose state decays by one factor a head and token, over packed rows, by products of chunks on the tensor
// cores: SSD (kernels/scan/ssd.h), lightning attention and simple gated linear attention (kernels/linear/).
//
//   S[h] = e^g[t, h] S[h] + in[t, h] k[t] v[t]^T       y[t, h] = scale q[t]^T S[h] + skip[h] v[t]       S is [K, V]
//
// A block walks down one row and head, kChunkValues value channels wide, in chunks of kChunkTokens; its state never
// leaves its registers between the row's first token and its last. With G the sum of g from the chunk's start and s the
// token before a warp's 16:
//
//   y[t] = scale e^(G[t] - G[s]) (e^G[s] q S + sum over j <= s of (q k[j]) e^(G[s] - G[j]) in[j] v[j])
//          + scale sum over s < j <= t of (q k[j]) e^(G[t] - G[j]) in[j] v[j]
//   S <- e^G[end] S + sum over j of k[j] e^(G[end] - G[j]) in[j] v[j]^T
//
// No exponent is above 0. Operands are bfloat16 (scores, keys times their factor, and S where it is read, are rounded
// to it), sums, decays and the state float32. What bounds it is the bandwidth of shared memory (4190 cycles a chunk at
// K = 128 against 3020 of products), hence 16 tokens of q in registers throughout and the second chunk on its way while
// the first is computed: one barrier a chunk. For .cu files only.
#pragma once

#include "kernels/cuda_mma.cuh"
#include "kernels/cuda_operation.cuh"

namespace coluber {

inline constexpr int kChunkTokens = 128, kChunkValues = 64, kChunkWarps = 8, kChunkThreads = kChunkWarps * 32;
inline constexpr int kMaxChunkKeys = 128;

// Vectors [T, H / shared_by, ...] of an operand.
struct HeadVectors {
  const __nv_bfloat16* first = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t shared_by = 1;  // heads that read the same one

  __device__ const __nv_bfloat16* of(int head) const { return first + head / shared_by * head_stride; }
};

struct DecayChunks {
  HeadVectors q, k, v;
  __nv_bfloat16* y = nullptr;  // [T, H, V]; may be v
  int64_t y_stride = 0;
  float scale = 1;
  const float* skip = nullptr;  // [H] or null
  StateSlots state;             // of a head K * V elements
  int64_t state_key_stride = 0, state_value_stride = 0;
  StateExports exports;
  const int32_t* query_start_loc = nullptr;
  int64_t rows = 0;
  int32_t num_heads = 0, key_dim = 0, value_dim = 0;
};

// What a token does to the state: log2 of its decay, and the weight of its input.
struct TokenGate {
  float log_decay, input;
};

template <int kKeys>
struct ChunkStage {
  __nv_bfloat16 q[kChunkTokens * kKeys], k[kChunkTokens * kKeys], v[kChunkTokens * kChunkValues];
  float log_decay[kChunkTokens];  // summed from the chunk's start
  float input[kChunkTokens];
  float to_end[kChunkTokens];  // input times the decay from the token to the chunk's end
};
template <int kKeys>
struct ChunkShared {
  ChunkStage<kKeys> stages[2];
  __nv_bfloat16 state[2][kKeys * kChunkValues];  // [key][value], the one that a chunk reads and the one it leaves
};

// A block's way down its row. Gate: Raw ask(token, head), which only loads, and TokenGate of(raw, head).
template <int kKeys, typename Gate>
struct ChunkWalk {
  static constexpr int kKeySteps = kKeys / 16;
  // A warp's part of the state: 16 keys by kValueTiles times 8 values.
  static constexpr int kColumnGroups = kChunkWarps / kKeySteps, kValueTiles = kChunkValues / 8 / kColumnGroups;
  using Stage = ChunkStage<kKeys>;

  const DecayChunks& args;
  const Gate& gate;
  ChunkShared<kKeys>& shared;
  int head, first_value, lane, warp, tile;
  const __nv_bfloat16 *q, *k, *v;
  __nv_bfloat16* y;
  float state[kValueTiles][4];

  __device__ ChunkWalk(const DecayChunks& args, const Gate& gate, ChunkShared<kKeys>& shared)
      : args(args), gate(gate), shared(shared) {
    const int tiles = (args.value_dim + kChunkValues - 1) / kChunkValues;
    head = static_cast<int>(blockIdx.x) / tiles;
    first_value = static_cast<int>(blockIdx.x) % tiles * kChunkValues;
    lane = static_cast<int>(threadIdx.x) % 32;
    warp = static_cast<int>(threadIdx.x) / 32;
    // Later tokens have more before them: the two warps of a scheduler, w and w + 4, together have the same everywhere.
    tile = warp < kChunkWarps / 2 ? warp : 3 * kChunkWarps / 2 - 1 - warp;
    q = args.q.of(head);
    k = args.k.of(head);
    v = args.v.of(head) + first_value;
    y = args.y + static_cast<int64_t>(head) * args.value_dim + first_value;
  }

  __device__ int values() const { return min(kChunkValues, args.value_dim - first_value); }

  // Where the chunk from token `at` of the row [begin, end) ends.
  __device__ int stop_after(int at, int begin, int end, int next_export, int last_export) const {
    int stop = min(at + kChunkTokens, end);
    if (next_export < last_export) stop = min(stop, begin + args.exports.offsets[next_export]);
    return stop;
  }

  __device__ void ask(Stage& stage, int at, int stop) const {
    copy_tile_later<kChunkThreads, kChunkTokens, kKeys>(stage.q, q + at * args.q.token_stride, args.q.token_stride,
                                                        stop - at, args.key_dim);
    copy_tile_later<kChunkThreads, kChunkTokens, kKeys>(stage.k, k + at * args.k.token_stride, args.k.token_stride,
                                                        stop - at, args.key_dim);
    copy_tile_later<kChunkThreads, kChunkTokens, kChunkValues>(stage.v, v + at * args.v.token_stride,
                                                               args.v.token_stride, stop - at, values());
    close_copies();
  }

  // The gates of a chunk are the first warp's, four tokens a lane; what is not there decays and adds nothing.
  using RawGates = typename Gate::Raw[4];
  __device__ void ask_gates(RawGates& raw, int at, int stop) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (at + lane * 4 + i < stop) raw[i] = gate.ask(at + lane * 4 + i, head);
  }
  __device__ void put_gates(Stage& stage, const RawGates& raw, int tokens) const {
    float sum[4], input[4], to_end[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const TokenGate g = lane * 4 + i < tokens ? gate.of(raw[i], head) : TokenGate{0.0f, 0.0f};
      input[i] = g.input;
      sum[i] = i == 0 ? g.log_decay : sum[i - 1] + g.log_decay;
    }
    float before = sum[3];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, before, static_cast<unsigned>(offset));
      if (lane >= offset) before += other;
    }
    const float end = __shfl_sync(0xffffffffu, before, 31);
    before = __shfl_up_sync(0xffffffffu, before, 1);
    if (lane == 0) before = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // The last token's sum by one way only: as `end` it would differ by rounding.
      sum[i] = lane == 31 && i == 3 ? end : before + sum[i];
      to_end[i] = input[i] * exp2_fast(fminf(end - sum[i], 0.0f));
    }
    store_floats(stage.log_decay + lane * 4, sum);
    store_floats(stage.input + lane * 4, input);
    store_floats(stage.to_end + lane * 4, to_end);
  }

  // The state in registers, [key][value] as sums of products are.
  __device__ int key_of(int element) const { return warp % kKeySteps * 16 + lane / 4 + element / 2 * 8; }
  __device__ int value_tile() const { return warp / kKeySteps * kValueTiles; }
  __device__ int value_of(int j, int element) const { return (value_tile() + j) * 8 + lane % 4 * 2 + element % 2; }
  template <typename F>
  __device__ void for_each_element(F&& f) {
#pragma unroll
    for (int j = 0; j < kValueTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key_of(i), value = first_value + value_of(j, i);
        const int64_t at = static_cast<int64_t>(head) * args.key_dim * args.value_dim + key * args.state_key_stride +
                           value * args.state_value_stride;
        f(state[j][i], at, key < args.key_dim && value < args.value_dim);
      }
  }
  __device__ void load_state(const char* source) {
    for_each_element(
        [&](float& s, int64_t at, bool is_there) { s = is_there ? load_element(source, args.state.dtype, at) : 0.0f; });
  }
  __device__ void store_state(char* target) {
    for_each_element([&](float& s, int64_t at, bool is_there) {
      if (is_there) store_element(target, args.state.dtype, at, s);
    });
  }
  __device__ void share_state(int buffer) const {
    const uint32_t to = shared_address(shared.state[buffer]);
#pragma unroll
    for (int j = 0; j < kValueTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; i += 2)
        store_shared(to + tile_offset_of_pair<kChunkValues>(key_of(i), value_of(j, 0)),
                     pack_pair(state[j][i], state[j][i + 1]));
  }

  // Adds to `sums` [16, kChunkValues] the tokens of kBlocks blocks of 16, weighted by weigh(score, row, token), where
  // row 0 or 1 is the upper or lower of the lane's two.
  template <int kBlocks, typename Weigh>
  __device__ void add_tokens(const Stage& stage, const uint32_t (&queries)[kKeySteps][4], int first_block,
                             float (&sums)[kChunkValues / 8][4], Weigh&& weigh) const {
    float scores[2 * kBlocks][4] = {};
    const uint32_t keys = shared_address(stage.k), inputs = shared_address(stage.v);
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s)
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        uint32_t right[4];
        load_right<kKeys>(right, keys, (first_block + b) * 16, s * 2, lane);
        multiply_add(scores[2 * b], scores[2 * b + 1], queries[s], right);
      }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = (first_block + b) * 16 + t * 8 + lane % 4 * 2 + i;
          weigh(scores[2 * b + t][i], scores[2 * b + t][i + 2], token);
        }
      uint32_t left[4];
      left_of_sums(left, scores[2 * b], scores[2 * b + 1]);
#pragma unroll
      for (int j = 0; j < kChunkValues / 8; j += 2) {
        uint32_t right[4];
        load_right_transposed<kChunkValues>(right, inputs, (first_block + b) * 16, j, lane);
        multiply_add(sums[j], sums[j + 1], left, right);
      }
    }
  }

  // y of the warp's 16 tokens, from the state before the chunk.
  __device__ void outputs(Stage& stage, int buffer, float (&sums)[kChunkValues / 8][4]) const {
    uint32_t queries[kKeySteps][4];
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s) load_left<kKeys>(queries[s], shared_address(stage.q), tile * 16, s * 2, lane);
    const uint32_t states = shared_address(shared.state[buffer]);
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s)
#pragma unroll
      for (int j = 0; j < kChunkValues / 8; j += 2) {
        uint32_t right[4];
        load_right_transposed<kChunkValues>(right, states, s * 16, j, lane);
        multiply_add(sums[j], sums[j + 1], queries[s], right);
      }
    const float before = tile > 0 ? stage.log_decay[tile * 16 - 1] : 0.0f;
    scale_rows(sums, exp2_fast(before), exp2_fast(before));
    const auto weigh_earlier = [&](float& upper, float& lower, int token) {
      const float weight = exp2_fast(fminf(before - stage.log_decay[token], 0.0f)) * stage.input[token];
      upper *= weight;
      lower *= weight;
    };
    int block = 0;
    for (; block + 2 <= tile; block += 2) add_tokens<2>(stage, queries, block, sums, weigh_earlier);
    if (block < tile) add_tokens<1>(stage, queries, block, sums, weigh_earlier);
    const int row = tile * 16 + lane / 4;
    const float upper_decay = stage.log_decay[row], lower_decay = stage.log_decay[row + 8];
    scale_rows(sums, exp2_fast(fminf(upper_decay - before, 0.0f)), exp2_fast(fminf(lower_decay - before, 0.0f)));
    add_tokens<1>(stage, queries, tile, sums, [&](float& upper, float& lower, int token) {
      const float decay = stage.log_decay[token], input = stage.input[token];
      upper = token <= row ? upper * exp2_fast(fminf(upper_decay - decay, 0.0f)) * input : 0.0f;
      lower = token <= row + 8 ? lower * exp2_fast(fminf(lower_decay - decay, 0.0f)) * input : 0.0f;
    });
  }
  __device__ static void scale_rows(float (&sums)[kChunkValues / 8][4], float upper, float lower) {
#pragma unroll
    for (auto& sum : sums) {
      sum[0] *= upper;
      sum[1] *= upper;
      sum[2] *= lower;
      sum[3] *= lower;
    }
  }

  // By way of the warp's own rows of q, which no other warp reads, so that rows go out 16 bytes a lane.
  __device__ void store_outputs(const Stage& stage, int at, int tokens, float (&sums)[kChunkValues / 8][4]) const {
    const float skip = args.skip != nullptr ? args.skip[head] : 0.0f;
    const uint32_t inputs = shared_address(stage.v), rows = shared_address(stage.q + tile * 16 * kKeys);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kChunkValues / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int row = lane / 4 + i / 2 * 8;
        float in[2];
        WordOf<__nv_bfloat16>::unpack(
            load_shared(inputs + tile_offset_of_pair<kChunkValues>(tile * 16 + row, j * 8 + lane % 4 * 2)), in);
        store_shared(
            rows + tile_offset_of_pair<kChunkValues>(row, j * 8 + lane % 4 * 2),
            pack_pair(fmaf(skip, in[0], args.scale * sums[j][i]), fmaf(skip, in[1], args.scale * sums[j][i + 1])));
      }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane / 8, vector = lane % 8, token = tile * 16 + row;
      if (token < tokens && vector * 8 < values())
        *reinterpret_cast<uint4*>(y + (at + token) * args.y_stride + vector * 8) =
            load_shared_16(rows + tile_offset<kChunkValues>(row, vector));
    }
  }

  __device__ void advance_state(const Stage& stage, int tokens) {
    const float decay = exp2_fast(stage.log_decay[kChunkTokens - 1]);
#pragma unroll
    for (auto& s : state)
#pragma unroll
      for (float& element : s) element *= decay;
    const uint32_t keys = shared_address(stage.k), inputs = shared_address(stage.v);
#pragma unroll 2
    for (int step = 0; step < kChunkTokens / 16; ++step) {
      if (step * 16 >= tokens) break;
      uint32_t left[4];
      load_left_transposed<kKeys>(left, keys, step * 16, warp % kKeySteps * 2, lane);
      const float2* weights = reinterpret_cast<const float2*>(stage.to_end + step * 16 + lane % 4 * 2);
      const float2 first = weights[0], second = weights[4];
      left[0] = scale_pair(left[0], first);
      left[1] = scale_pair(left[1], first);
      left[2] = scale_pair(left[2], second);
      left[3] = scale_pair(left[3], second);
#pragma unroll
      for (int j = 0; j < kValueTiles; j += 2) {
        uint32_t right[4];
        load_right_transposed<kChunkValues>(right, inputs, step * 16, value_tile() + j, lane);
        multiply_add(state[j], state[j + 1], left, right);
      }
    }
  }

  __device__ void walk(const RowSlots& slots, int row, int begin, int end) {
    int next = args.exports.starts != nullptr ? args.exports.starts[row] : 0;
    const int last = args.exports.starts != nullptr ? args.exports.starts[row + 1] : 0;
    int at = begin, stop = stop_after(at, begin, end, next, last);
    RawGates raw;
    if (at < end) ask(shared.stages[0], at, stop);
    load_state(slots.source);
    if (at < end && warp == 0) {
      ask_gates(raw, at, stop);
      put_gates(shared.stages[0], raw, stop - at);
    }
    share_state(0);
    for (int i = 0; at < end; i ^= 1) {
      Stage& stage = shared.stages[i];
      const bool leaves_state = next < last && stop - begin == args.exports.offsets[next];
      const int next_stop = stop_after(stop, begin, end, next + (leaves_state ? 1 : 0), last);
      wait_for_copies<0>();
      __syncthreads();
      if (stop < end) {
        ask(shared.stages[i ^ 1], stop, next_stop);
        if (warp == 0) ask_gates(raw, stop, next_stop);
      }
      if (tile * 16 < stop - at) {
        float sums[kChunkValues / 8][4] = {};
        outputs(stage, i, sums);
        store_outputs(stage, at, stop - at, sums);
      }
      advance_state(stage, stop - at);
      if (leaves_state) store_state(slot_at(args.state, args.exports.slots[next++]));
      share_state(i ^ 1);
      if (stop < end && warp == 0) put_gates(shared.stages[i ^ 1], raw, next_stop - stop);
      at = stop;
      stop = next_stop;
    }
    store_state(slots.target);
  }

  __device__ void write_zeros(int begin, int end) const {
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * (kChunkValues / 8); i += kChunkThreads) {
      const int token = begin + i / (kChunkValues / 8), vector = i % (kChunkValues / 8);
      if (vector * 8 < values()) *reinterpret_cast<uint4*>(y + token * args.y_stride + vector * 8) = uint4{0, 0, 0, 0};
    }
  }
};

template <int kKeys, typename Gate>
__global__ void __launch_bounds__(kChunkThreads, 1)
    walk_chunks(const __grid_constant__ DecayChunks args, const __grid_constant__ Gate gate) {
  extern __shared__ __align__(128) unsigned char memory[];
  ChunkWalk<kKeys, Gate> walk(args, gate, *reinterpret_cast<ChunkShared<kKeys>*>(memory));
  const int row = static_cast<int>(blockIdx.y);
  const int begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) return walk.write_zeros(begin, end);
  walk.walk(slots, row, begin, end);
}

template <int kKeys, typename Gate>
CudaStatus launch_chunks(const DecayChunks& args, const Gate& gate, cudaStream_t stream) {
  constexpr int kBytes = sizeof(ChunkShared<kKeys>);
  const cudaError_t error =
      cudaFuncSetAttribute(walk_chunks<kKeys, Gate>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  const auto tiles = static_cast<unsigned>((args.value_dim + kChunkValues - 1) / kChunkValues);
  const dim3 grid(static_cast<unsigned>(args.num_heads) * tiles, static_cast<unsigned>(args.rows));
  walk_chunks<kKeys, Gate><<<grid, kChunkThreads, kBytes, stream>>>(args, gate);
  return launch_status();
}

inline bool vectors_are_aligned(const void* first, int64_t token_stride, int64_t head_stride) {
  return reinterpret_cast<uintptr_t>(first) % 16 == 0 && token_stride % 8 == 0 && head_stride % 8 == 0;
}

// Refuses what it cannot do, by name.
template <typename Gate>
CudaStatus run_chunks(const DecayChunks& args, const Gate& gate, cudaStream_t stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows < 0 || args.rows > kMostGridRows) return kTooManyRows;
  if (!is_float_state(args.state.dtype)) return kStateOfOtherType;
  if (args.key_dim < 8 || args.key_dim > kMaxChunkKeys || args.key_dim % 8 != 0)
    return "keys of another size than a multiple of 8 up to 128";
  if (args.value_dim < 8 || args.value_dim % 8 != 0) return "values of another size than a multiple of 8";
  for (const HeadVectors& operand : {args.q, args.k, args.v})
    if (!vectors_are_aligned(operand.first, operand.token_stride, operand.head_stride))
      return "operands that do not lie at multiples of 16 bytes";
  if (!vectors_are_aligned(args.y, args.y_stride, args.value_dim))
    return "outputs that do not lie at multiples of 16 bytes";
  return args.key_dim <= 64 ? launch_chunks<64>(args, gate, stream) : launch_chunks<128>(args, gate, stream);
}

}  // namespace coluber
