// SPDX-License-Identifier: Apache-2.0
//
// The delta rule over packed rows of many tokens on a CUDA device: the recurrence of delta_rule.h with its gates and
// norms for a decay a head (Gated DeltaNet) or none (DeltaNet), by chunks of 64 tokens on the tensor cores. With G the
// sum of g from the chunk's start, S the state before it, and k, q normalised:
//
//   A[i, j] = beta[i] e^(G[i] - G[j]) (k[i] . k[j]), j < i        T = (I + A)^-1
//   u = T diag(beta) (v - e^G k S)        y = e^G q S + (q k^T e^(G[i] - G[j]), j <= i) u
//   S <- e^G[end] S + sum over j of e^(G[end] - G[j]) k[j] u[j]^T
//
// One kernel makes T diag(beta) and the scores of q and k for all chunks at once, in scratch memory; another walks down
// the rows. T's blocks of 16 on the diagonal are solved for in float32, those below them by products of operands
// rounded to 10 bits of mantissa, summed in float32; operands (T, the scores, v less what the state knows, u, and S
// where it is read) are rounded to bfloat16, q and k stay as they came, their norms and all decays are float32 factors
// of sums. Activations are bfloat16, states [Hv, Dv, Dk] float32, bfloat16 or float16. A chunk starts at a row's first
// token: no result depends on what else is packed. Results are the same on every run. All pointers are the device's;
// what they point at is borrowed until the stream has done the work.
#pragma once

#include <cstdint>

#include "coluber/dtype.h"
#include "kernels/state_slots.h"
#include "tensor/cuda_api.h"

namespace coluber {

// Frobenius norm of the error over that of the reference in float64.
inline constexpr double kDeltaPrefillError = 1e-2;
inline constexpr int64_t kDeltaChunk = 64;

struct DeltaPrefillCudaArgs {
  DType activations = DType::kBFloat16;  // of q, k, v, gate, beta and y; no other is computed
  const void* q = nullptr;               // [T, Hk, Dk]
  int64_t q_stride = 0;                  // elements between tokens, as every stride here
  const void* k = nullptr;               // [T, Hk, Dk]
  int64_t k_stride = 0;
  const void* v = nullptr;  // [T, Hv, Dv]
  int64_t v_stride = 0;
  const void* gate = nullptr;  // [T, Hv]; null: no decay
  int64_t gate_stride = 0;
  const float* gate_bias = nullptr;  // [Hv]; null: 0
  const float* gate_rate = nullptr;  // [Hv], exp(A_log)
  float gate_lower_bound = 0;        // 0: none
  const void* beta = nullptr;        // [T, Hv] logits or null
  int64_t beta_stride = 0;
  float beta_scale = 1;
  float norm_eps = 0;  // 0: q and k as they come
  float scale = 1;
  void* y = nullptr;  // [T, Hv, Dv]; may be v
  int64_t y_stride = 0;
  StateSlots state;  // (Hv, Dv, Dk); kFloat32, kBFloat16 or kFloat16
  StateExports exports;
  const int32_t* query_start_loc = nullptr;  // [R+1]
  int64_t tokens = 0;                        // at least query_start_loc[R]
  int64_t rows = 0;                          // at most 65535
  int64_t num_k_heads = 0;                   // Hk, a divisor of Hv
  int64_t num_v_heads = 0;
  int64_t key_dim = 0;      // Dk, a multiple of 8 up to 128
  int64_t value_dim = 0;    // Dv, a multiple of 8
  void* scratch = nullptr;  // delta_prefill_scratch_bytes, 16 bytes aligned
};

// Chunks that the rows can have at most: row r's first is query_start_loc[r] / kDeltaChunk + r.
inline int64_t most_delta_chunks(const DeltaPrefillCudaArgs& args) { return args.tokens / kDeltaChunk + args.rows; }
// Of a chunk and head: two tiles of 64 x 64 bfloat16, five float32 a token.
inline constexpr int64_t kDeltaScratchOfChunk = 2 * kDeltaChunk * kDeltaChunk * 2 + 5 * kDeltaChunk * 4;
inline int64_t delta_prefill_scratch_bytes(const DeltaPrefillCudaArgs& args) {
  return most_delta_chunks(args) * args.num_v_heads * kDeltaScratchOfChunk;
}

using DeltaPrefillCudaFunction = CudaStatus (*)(const DeltaPrefillCudaArgs* args, CudaStream stream);
inline constexpr const char* kDeltaPrefillCuda = "coluber_cuda_delta_prefill";

}  // namespace coluber
