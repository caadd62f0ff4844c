// SPDX-License-Identifier: Apache-2.0
//
// A layer of experts: a router picks `top_k` of E gated MLPs for each token, and their outputs are added by weight.
//
//   p = softmax(router logits [T, E]); I = the top_k largest, ties to the lowest id;  w_e = p_e / sum_{i in I} p_i
//   y_t = sum_{e in I, ascending} w_e * (W2_e (silu(W1_e x_t) * W3_e x_t))
//
// Tokens are grouped by expert, so that a weight is read once a step; every matrix product splits its rows over the
// threads (few tokens: an expert is never left to one thread). A token's result does not depend on the tokens beside
// it, as each product (kernels/gemm) and the order of the sum do not. Router statistics are float32, as published; the
// gate of a NaN token still names valid experts, and its weights carry the NaN.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/gemm/packed_matrix.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

struct RouterArgs {
  const float* logits = nullptr;  // [T, E]
  int64_t num_tokens = 0;
  int64_t num_experts = 0;
  int64_t top_k = 0;              // 1 to E
  bool renormalize = true;        // false: w_e = p_e
  int32_t* expert_ids = nullptr;  // out: [T, top_k], ascending
  float* weights = nullptr;       // out: [T, top_k]
};

// Scalar by design: it needs top_k exponentials a token (E without renormalisation), next to D * E products of the
// gate.
void route_top_k(const RouterArgs& args, ThreadPool& pool);

struct Expert {
  PackedMatrix w1;  // [F, D] gate
  PackedMatrix w3;  // [F, D] up
  PackedMatrix w2;  // [D, F] down
};

struct ExpertsArgs {
  const float* x = nullptr;  // [T, D]
  float* y = nullptr;        // [T, D], not overlapping x
  int64_t num_tokens = 0;
  std::span<const Expert> experts;
  const int32_t* expert_ids = nullptr;  // [T, top_k], ascending in a row
  const float* weights = nullptr;       // [T, top_k]
  int64_t top_k = 0;
  bool accumulate = false;  // add to y instead of overwriting it
  bool allow_bf16 = false;
};

void run_experts(const ExpertsArgs& args, ThreadPool& pool, Workspace& workspace);

// y[t] (+)= sum_j weights[t, j] * rows[places[t, j]], j ascending: the way back from expert order to token order.
struct CombineExpertsArgs {
  const float* rows = nullptr;      // [T * top_k, D]
  const int32_t* places = nullptr;  // [T, top_k]
  const float* weights = nullptr;   // [T, top_k]
  float* y = nullptr;               // [T, D]
  int64_t num_tokens = 0;
  int64_t top_k = 0;
  int64_t width = 0;  // D
  bool accumulate = false;
};

inline constexpr Tolerance kCombineExpertsTolerance{.of_rms = 2e-6};

using CombineExpertsFunction = void (*)(const CombineExpertsArgs& args, ThreadPool& pool);
const Operation<CombineExpertsFunction>& combine_experts();

void combine_experts_ref(const CombineExpertsArgs& args, ThreadPool& pool);

}  // namespace coluber
