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
//   y[t] = scale e^G[t] q S + scale e^(G[t] - G[s]) sum over j <= s of (q k[j]) e^(G[s] - G[j]) in[j] v[j]
//          + scale sum over s < j <= t of (q k[j]) e^(G[t] - G[j]) in[j] v[j]
//   S <- e^G[end] S + sum over j of k[j] e^(G[end] - G[j]) in[j] v[j]^T
//
// No exponent is above 0. Operands are bfloat16 (weighted scores, inputs times their factor, and S where it is read,
// are rounded to it), sums, decays and the state float32.
//
// Only S goes from chunk to chunk, so a warpgroup has nothing else to do than that: it adds up a chunk and leaves S in
// shared memory, a ring of three, for the two warpgroups that take the outputs of every second chunk each; a fourth
// copies chunks into a ring of four and computes what the gates give. For .cu files only.
#pragma once

#include "kernels/cuda_operation.cuh"
#include "kernels/cuda_wgmma.cuh"

namespace coluber {

inline constexpr int kChunkTokens = 64, kChunkValues = 64, kChunkThreads = 512;
inline constexpr int kMaxChunkKeys = 128;
inline constexpr int kChunkStages = 4, kChunkStates = 3;
// Of 65536 registers: a copying thread has few, so that a computing one may have 152.
inline constexpr int kCopyingRegisters = 56, kComputingRegisters = 152;

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
  static constexpr int kPanels = kKeys / kPanelColumns;
  __nv_bfloat16 q[kPanels][kChunkTokens * kPanelColumns], k[kPanels][kChunkTokens * kPanelColumns];
  __nv_bfloat16 v[kChunkTokens * kChunkValues];
};
struct ChunkGates {
  float log_decay[kChunkTokens];  // summed from the chunk's start
  float input[kChunkTokens];
  float to_end[kChunkTokens];  // input times the decay from the token to the chunk's end
  // Input times the decay from a token before the 16 of warp w = 1, 2, 3 to the last of those: [8 w (w - 1), + 16 w).
  float to_warp[96];
};
template <int kKeys>
struct ChunkShared {
  ChunkStage<kKeys> stages[kChunkStages];
  // [value][key], what chunk i reads in i % kChunkStates.
  __nv_bfloat16 states[kChunkStates][kKeys / kPanelColumns][kChunkValues * kPanelColumns];
  ChunkGates gates[kChunkStages];
  uint64_t stage_is_full[kChunkStages], stage_is_free[kChunkStages];
  uint64_t state_is_full[kChunkStates], state_is_free[kChunkStates];
};

// The chunks of a row: cut where it leaves a state on its way.
class RowChunks {
 public:
  __device__ RowChunks(const StateExports& exports, int row, int begin, int end)
      : exports_(exports), begin_(begin), end_(end), at(begin) {
    next_ = exports.starts != nullptr ? exports.starts[row] : 0;
    last_ = exports.starts != nullptr ? exports.starts[row + 1] : 0;
    find_stop();
  }
  __device__ bool are_left() const { return at < end_; }
  __device__ int tokens() const { return stop - at; }
  __device__ bool leaves_state() const { return stop == cut_; }
  __device__ int32_t slot_left() const { return exports_.slots[next_]; }
  __device__ void advance() {
    if (leaves_state()) ++next_;
    at = stop;
    ++index;
    find_stop();
  }

 private:
  __device__ void find_stop() {
    cut_ = next_ < last_ ? begin_ + exports_.offsets[next_] : -1;
    stop = min(at + kChunkTokens, end_);
    if (cut_ >= 0) stop = min(stop, cut_);
  }
  const StateExports& exports_;
  int begin_, end_, next_, last_, cut_;

 public:
  int at, stop = 0, index = 0;
};

// A block's way down its row. Gate: Raw ask(token, head), which only loads, and TokenGate of(raw, head).
template <int kKeys, typename Gate>
struct ChunkWalk {
  static constexpr int kPanels = kKeys / kPanelColumns, kKeySteps = kKeys / 16;
  static constexpr int kTokenSteps = kChunkTokens / 16;
  static constexpr uint32_t kPanelBytes = kChunkTokens * kPanelRowBytes;
  using Stage = ChunkStage<kKeys>;

  const DecayChunks& args;
  const Gate& gate;
  ChunkShared<kKeys>& shared;
  int head, first_value, lane, warp;  // of the warpgroup

  __device__ ChunkWalk(const DecayChunks& args, const Gate& gate, ChunkShared<kKeys>& shared)
      : args(args), gate(gate), shared(shared) {
    const int tiles = (args.value_dim + kChunkValues - 1) / kChunkValues;
    head = static_cast<int>(blockIdx.x) / tiles;
    first_value = static_cast<int>(blockIdx.x) % tiles * kChunkValues;
    lane = static_cast<int>(threadIdx.x) % 32;
    warp = static_cast<int>(threadIdx.x) / 32 % 4;
  }

  __device__ int values() const { return min(kChunkValues, args.value_dim - first_value); }
  __device__ __nv_bfloat16* outputs() const {
    return args.y + static_cast<int64_t>(head) * args.value_dim + first_value;
  }

  __device__ void make_barriers() const {
    for (int i = 0; i < kChunkStages; ++i) {
      make_barrier(shared_address(&shared.stage_is_full[i]), 128 + 32);   // threads that copy, and that make the gates
      make_barrier(shared_address(&shared.stage_is_free[i]), 128 + 128);  // that take it into S, and into y
    }
    for (int i = 0; i < kChunkStates; ++i) {
      make_barrier(shared_address(&shared.state_is_full[i]), 128);
      make_barrier(shared_address(&shared.state_is_free[i]), 128);
    }
  }
  // Use `index` of a ring: waits until it is full, or until its former use is over.
  template <int kRing>
  __device__ static void wait_until_full(const uint64_t (&barriers)[kRing], int index) {
    wait_for_phase(shared_address(&barriers[index % kRing]), static_cast<uint32_t>(index / kRing & 1));
  }
  template <int kRing>
  __device__ static void wait_until_free(const uint64_t (&barriers)[kRing], int index) {
    if (index >= kRing)
      wait_for_phase(shared_address(&barriers[index % kRing]), static_cast<uint32_t>((index / kRing & 1) ^ 1));
  }
  // Every thread for itself: one lane for a warp that has met is slower, and checkers of races take it for one.
  template <int kRing>
  __device__ static void arrive_at(uint64_t (&barriers)[kRing], int index) {
    arrive(shared_address(&barriers[index % kRing]));
  }

  // The copying warpgroup.
  __device__ void copy(RowChunks chunks) const {
    const __nv_bfloat16 *q = args.q.of(head), *k = args.k.of(head), *v = args.v.of(head) + first_value;
    RawGates raw;
    if (warp == 0) ask_gates(raw, chunks);
    while (chunks.are_left()) {
      Stage& stage = shared.stages[chunks.index % kChunkStages];
      wait_until_free(shared.stage_is_free, chunks.index);
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        copy_panel(stage.k[p], k, args.k.token_stride, chunks, p * kPanelColumns, args.key_dim);
        copy_panel(stage.q[p], q, args.q.token_stride, chunks, p * kPanelColumns, args.key_dim);
      }
      copy_panel(stage.v, v, args.v.token_stride, chunks, 0, values());
      const int index = chunks.index, tokens = chunks.tokens();
      arrive_after_copies(shared_address(&shared.stage_is_full[index % kChunkStages]));
      chunks.advance();
      if (warp == 0) {
        const RawGates now = raw;
        ask_gates(raw, chunks);
        put_gates(shared.gates[index % kChunkStages], now, tokens);
        arrive_at(shared.stage_is_full, index);
      }
    }
  }
  __device__ static void copy_panel(const __nv_bfloat16* to, const __nv_bfloat16* from, int64_t stride,
                                    const RowChunks& chunks, int first_column, int columns) {
    copy_tile_later<128, kChunkTokens, kPanelColumns>(to, from + chunks.at * stride + first_column, stride,
                                                      chunks.tokens(), columns - first_column);
  }

  // The gates of a chunk are one warp's, two tokens a lane; what is not there decays and adds nothing.
  struct RawGates {
    typename Gate::Raw of[2];
  };
  __device__ void ask_gates(RawGates& raw, const RowChunks& chunks) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (lane * 2 + i < chunks.tokens()) raw.of[i] = gate.ask(chunks.at + lane * 2 + i, head);
  }
  __device__ void put_gates(ChunkGates& gates, const RawGates& raw, int tokens) const {
    float sum[2], input[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const TokenGate g = lane * 2 + i < tokens ? gate.of(raw.of[i], head) : TokenGate{0.0f, 0.0f};
      input[i] = g.input;
      sum[i] = i == 0 ? g.log_decay : sum[0] + g.log_decay;
    }
    float before = sum[1];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, before, static_cast<unsigned>(offset));
      if (lane >= offset) before += other;
    }
    sum[1] = before;
    before = __shfl_up_sync(0xffffffffu, before, 1);
    sum[0] += lane == 0 ? 0.0f : before;
    put_pair(gates.log_decay, sum[0], sum[1]);
    put_pair(gates.input, input[0], input[1]);
    put_weights(gates.to_end, sum, input, 31);
#pragma unroll
    for (int w = 1; w < 4; ++w) put_weights(gates.to_warp + 8 * w * (w - 1), sum, input, 8 * w - 1);
  }
  __device__ void put_pair(float* to, float first, float second) const {
    reinterpret_cast<float2*>(to)[lane] = make_float2(first, second);
  }
  // Inputs times the decay to the second token of lane `to_lane`, of the tokens up to that.
  __device__ void put_weights(float* to, const float (&sum)[2], const float (&input)[2], int to_lane) const {
    const float end = __shfl_sync(0xffffffffu, sum[1], to_lane);
    if (lane <= to_lane)
      put_pair(to, input[0] * exp2_fast(fminf(end - sum[0], 0.0f)), input[1] * exp2_fast(fminf(end - sum[1], 0.0f)));
  }

  // The warpgroup of the state, which has it as sums of products, transposed: values by keys.
  using State = float[kKeys / 2];
  template <typename F>
  __device__ void for_each_element(State& state, F&& f) const {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int key = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int value = first_value + warp * 16 + lane / 4 + i % 4 / 2 * 8;
      const int64_t at = static_cast<int64_t>(head) * args.key_dim * args.value_dim + key * args.state_key_stride +
                         value * args.state_value_stride;
      f(state[i], at, key < args.key_dim && value < args.value_dim);
    }
  }
  __device__ void store_state(State& state, char* target) const {
    for_each_element(state, [&](float& s, int64_t at, bool is_there) {
      if (is_there) store_element(target, args.state.dtype, at, s);
    });
  }
  __device__ void share_state(const State& state, int index) const {
    wait_until_free(shared.state_is_free, index);
#pragma unroll
    for (int j = 0; j < kKeys / 8; j += 2) {
      const uint32_t panel = shared_address(shared.states[index % kChunkStates][j / 8]);
      const uint32_t pairs[4] = {
          pack_pair(state[j * 4], state[j * 4 + 1]), pack_pair(state[j * 4 + 2], state[j * 4 + 3]),
          pack_pair(state[j * 4 + 4], state[j * 4 + 5]), pack_pair(state[j * 4 + 6], state[j * 4 + 7])};
      store_matrices(panel + tile_offset<kPanelColumns>(warp * 16 + lane % 16, j % 8 + lane / 16), pairs);
    }
    show_to_tensor_cores();
    arrive_at(shared.state_is_full, index);
  }
  // A chunk's inputs times their weights, transposed: the warp's 16 values by its tokens.
  __device__ void load_inputs(uint32_t (&inputs)[kTokenSteps][4], int index) const {
    wait_until_full(shared.stage_is_full, index);
    const uint32_t v = shared_address(shared.stages[index % kChunkStages].v);
    const float* to_end = shared.gates[index % kChunkStages].to_end;
#pragma unroll
    for (int s = 0; s < kTokenSteps; ++s) {
      load_left_transposed<kPanelColumns>(inputs[s], v, s * 16, warp * 2, lane);
      const float2* weights = reinterpret_cast<const float2*>(to_end + s * 16 + lane % 4 * 2);
      const float2 first = weights[0], second = weights[4];
      inputs[s][0] = scale_pair(inputs[s][0], first);
      inputs[s][1] = scale_pair(inputs[s][1], first);
      inputs[s][2] = scale_pair(inputs[s][2], second);
      inputs[s][3] = scale_pair(inputs[s][3], second);
    }
  }
  __device__ void walk_state(RowChunks chunks, const RowSlots& slots) const {
    State state;
    for_each_element(state, [&](float& s, int64_t at, bool is_there) {
      s = is_there ? load_element(slots.source, args.state.dtype, at) : 0.0f;
    });
    uint32_t inputs[kTokenSteps][4], next_inputs[kTokenSteps][4];
    if (chunks.are_left()) {
      share_state(state, 0);
      load_inputs(inputs, 0);
    }
    while (chunks.are_left()) {
      const int index = chunks.index;
      const float decay = exp2_fast(shared.gates[index % kChunkStages].log_decay[kChunkTokens - 1]);
#pragma unroll
      for (float& s : state) s *= decay;
      show_to_tensor_cores();  // the copies
      open_products();
      const uint64_t keys = panel_by_columns(shared_address(shared.stages[index % kChunkStages].k), kPanelBytes);
#pragma unroll
      for (int s = 0; s < kTokenSteps; ++s) multiply_add_panel(state, inputs[s], keys + s * kNextByColumns);
      close_products();
      const bool leaves_state = chunks.leaves_state();
      const int32_t slot = leaves_state ? chunks.slot_left() : 0;
      chunks.advance();
      if (chunks.are_left()) load_inputs(next_inputs, chunks.index);
      wait_for_products<0>();
      arrive_at(shared.stage_is_free, index);
      if (chunks.are_left()) share_state(state, chunks.index);
      if (leaves_state) store_state(state, slot_at(args.state, slot));
#pragma unroll
      for (int s = 0; s < kTokenSteps; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) inputs[s][i] = next_inputs[s][i];
    }
    store_state(state, slots.target);
  }

  // A warpgroup of the outputs: of every second chunk, from chunk `first`.
  __device__ void walk_outputs(RowChunks chunks, int first) const {
    const float skip = args.skip != nullptr ? args.skip[head] : 0.0f;
    if (first == 1 && chunks.are_left()) chunks.advance();
    while (chunks.are_left()) {
      put_outputs(chunks, skip);
      chunks.advance();
      if (chunks.are_left()) chunks.advance();
    }
  }
  __device__ void put_outputs(const RowChunks& chunks, float skip) const {
    const int index = chunks.index;
    Stage& stage = shared.stages[index % kChunkStages];
    const ChunkGates& gates = shared.gates[index % kChunkStages];
    wait_until_full(shared.stage_is_full, index);
    show_to_tensor_cores();  // the copies
    float scores[kChunkTokens / 2] = {}, sums[kChunkValues / 2] = {};
    open_products();
    multiply_by_keys(scores, stage.q, stage.k);
    close_products();
    wait_until_full(shared.state_is_full, index);
    multiply_by_keys(sums, stage.q, shared.states[index % kChunkStates]);
    close_products();
    wait_for_products<1>();
    uint32_t weighted[kTokenSteps][4];
    weigh(weighted, scores, gates);
    const float upper = exp2_fast(gates.log_decay[warp * 16 + lane / 4]);
    const float lower = exp2_fast(gates.log_decay[warp * 16 + lane / 4 + 8]);
    wait_for_products<0>();
    arrive_at(shared.state_is_free, index);
#pragma unroll
    for (int i = 0; i < kChunkValues / 2; ++i) sums[i] *= i % 4 < 2 ? upper : lower;
    open_products();
    const uint64_t inputs = panel_by_columns(shared_address(stage.v), kPanelBytes);
#pragma unroll
    for (int s = 0; s < kTokenSteps; ++s) multiply_add_panel(sums, weighted[s], inputs + s * kNextByColumns);
    close_products();
    wait_for_products<0>();
    store_outputs(stage, chunks, skip, sums);
    arrive_at(shared.stage_is_free, index);
  }
  // sums [64, 64] = left right^T over the keys.
  __device__ static void multiply_by_keys(float (&sums)[32], const __nv_bfloat16 (&left)[kPanels][kChunkTokens * 64],
                                          const __nv_bfloat16 (&right)[kPanels][kChunkTokens * 64]) {
#pragma unroll
    for (int s = 0; s < kKeySteps; ++s)
      multiply_panels(sums, panel_by_rows(shared_address(left[s / 4])) + s % 4 * kNextByRows,
                      panel_by_rows(shared_address(right[s / 4])) + s % 4 * kNextByRows, s > 0);
  }
  __device__ void weigh(uint32_t (&weighted)[kTokenSteps][4], const float (&scores)[kChunkTokens / 2],
                        const ChunkGates& gates) const {
    const int row = warp * 16 + lane / 4;
    const float before = warp > 0 ? gates.log_decay[warp * 16 - 1] : 0.0f;
    const float upper_decay = gates.log_decay[row], lower_decay = gates.log_decay[row + 8];
    const float upper = exp2_fast(fminf(upper_decay - before, 0.0f)),
                lower = exp2_fast(fminf(lower_decay - before, 0.0f));
    const float* to_warp = gates.to_warp + 8 * warp * (warp - 1) + lane % 4 * 2;
#pragma unroll
    for (int s = 0; s < kTokenSteps; ++s)
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const float* score = scores + (s * 2 + t) * 4;
        uint32_t *upper_pair = &weighted[s][t * 2], *lower_pair = upper_pair + 1;
        const int token = s * 16 + t * 8 + lane % 4 * 2;
        if (s < warp) {
          const float2 weight = *reinterpret_cast<const float2*>(to_warp + s * 16 + t * 8);
          *upper_pair = pack_pair(score[0] * upper * weight.x, score[1] * upper * weight.y);
          *lower_pair = pack_pair(score[2] * lower * weight.x, score[3] * lower * weight.y);
        } else if (s == warp) {
          const float2 decay = *reinterpret_cast<const float2*>(gates.log_decay + token);
          const float2 input = *reinterpret_cast<const float2*>(gates.input + token);
          const auto weight = [&](float score, int of, float to, int from, float sum, float in) {
            return from <= of ? score * exp2_fast(fminf(to - sum, 0.0f)) * in : 0.0f;
          };
          *upper_pair = pack_pair(weight(score[0], row, upper_decay, token, decay.x, input.x),
                                  weight(score[1], row, upper_decay, token + 1, decay.y, input.y));
          *lower_pair = pack_pair(weight(score[2], row + 8, lower_decay, token, decay.x, input.x),
                                  weight(score[3], row + 8, lower_decay, token + 1, decay.y, input.y));
        } else {
          *upper_pair = *lower_pair = 0;
        }
      }
  }
  // By way of the warp's own rows of q, so that rows go out 16 bytes a lane.
  __device__ void store_outputs(Stage& stage, const RowChunks& chunks, float skip,
                                const float (&sums)[kChunkValues / 2]) const {
    const uint32_t inputs = shared_address(stage.v), rows = shared_address(stage.q);
    wait_for_warpgroup(static_cast<int>(threadIdx.x) / 128);  // all have read q
#pragma unroll
    for (int j = 0; j < kChunkValues / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t at = tile_offset_of_pair<kPanelColumns>(warp * 16 + lane / 4 + i / 2 * 8, j * 8 + lane % 4 * 2);
        float in[2] = {};
        if (args.skip != nullptr) WordOf<__nv_bfloat16>::unpack(load_shared(inputs + at), in);
        store_shared(rows + at, pack_pair(fmaf(skip, in[0], args.scale * sums[j * 4 + i]),
                                          fmaf(skip, in[1], args.scale * sums[j * 4 + i + 1])));
      }
    __syncwarp();
    __nv_bfloat16* y = outputs() + chunks.at * args.y_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = warp * 16 + i * 4 + lane / 8, vector = lane % 8;
      if (token < chunks.tokens() && vector * 8 < values())
        *reinterpret_cast<uint4*>(y + token * args.y_stride + vector * 8) =
            load_shared_16(rows + tile_offset<kPanelColumns>(token, vector));
    }
  }

  __device__ void write_zeros(int begin, int end) const {
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * (kChunkValues / 8); i += kChunkThreads) {
      const int token = begin + i / (kChunkValues / 8), vector = i % (kChunkValues / 8);
      if (vector * 8 < values())
        *reinterpret_cast<uint4*>(outputs() + token * args.y_stride + vector * 8) = uint4{0, 0, 0, 0};
    }
  }
};

template <int kKeys, typename Gate>
__global__ void __launch_bounds__(kChunkThreads, 1)
    walk_chunks(const __grid_constant__ DecayChunks args, const __grid_constant__ Gate gate) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const ChunkWalk<kKeys, Gate> walk(args, gate, *reinterpret_cast<ChunkShared<kKeys>*>(memory));
  const int row = static_cast<int>(blockIdx.y);
  const int begin = args.query_start_loc[row], end = args.query_start_loc[row + 1];
  const RowSlots slots = row_slots(args.state, row);
  if (slots.target == nullptr) return walk.write_zeros(begin, end);
  if (threadIdx.x == 0) walk.make_barriers();
  __syncthreads();
  const RowChunks chunks(args.exports, row, begin, end);
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    give_registers_back<kCopyingRegisters>();
    walk.copy(chunks);
  } else if (warpgroup == 1) {
    take_registers<kComputingRegisters>();
    walk.walk_state(chunks, slots);
  } else {
    take_registers<kComputingRegisters>();
    walk.walk_outputs(chunks, warpgroup - 2);
  }
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
