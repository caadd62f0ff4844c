// SPDX-License-Identifier: Apache-2.0
//
// A layer of experts: a router picks `top_k` of E MLPs for each token, and their outputs are added by weight.
//
//   s = softmax or sigmoid of the router's logits [T, E]
//   I = the top_k largest of s + selection_bias, ties to the lowest id; with groups, of the experts of the topk_groups
//       best of num_groups successive groups alone (a group's score: the sum of its two best)
//   w_e = scale * s_e, or renormalised  scale * s_e / (sum_{i in I} s_i + epsilon)
//   y_t = sum_{e in I, ascending} w_e * W2_e (f(W1_e x_t) * W3_e x_t)          without W3: W2_e f(W1_e x_t)
//
// `num_always` experts behind the E compete with nobody: every token runs through them, and they are part of I where
// weights are renormalised. The id E + num_always stands for no expert: it adds nothing.
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
#include "kernels/moe/activation.h"
#include "kernels/op.h"
#include "kernels/tolerance.h"
#include "tensor/workspace.h"

namespace coluber {

enum class RouterScore { kSoftmax, kSigmoid };

struct RouterArgs {
  const float* logits = nullptr;  // [T, E + num_always]
  int64_t num_tokens = 0;
  int64_t num_experts = 0;        // E
  int64_t top_k = 0;              // 1 to E
  bool renormalize = true;        // false: w_e = scale * s_e
  int32_t* expert_ids = nullptr;  // out: [T, top_k + num_always], ascending
  float* weights = nullptr;       // out: [T, top_k + num_always]
  RouterScore score = RouterScore::kSoftmax;
  const float* selection_bias = nullptr;  // [E] or null
  int64_t num_groups = 1;                 // a divisor of E
  int64_t topk_groups = 1;
  float epsilon = 0;
  float scale = 1;
  int64_t num_always = 0;
};

// On the processor scalar by design: it needs at most E exponentials a token, next to D * E products of the gate.
using RouterFunction = void (*)(const RouterArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<RouterFunction>& route_top_k();

// Of a token's weights against sums in another order.
inline constexpr Tolerance kRouterTolerance{.absolute = 1e-7, .relative = 5e-6};

struct Expert {
  PackedMatrix w1;  // [F, D] gate
  PackedMatrix w3;  // [F, D] up, or empty: not gated
  PackedMatrix w2;  // [D, F] down
};

// Where a device has an expert's matrices, in its memory: rows one behind the other (packed_matrix.h).
struct ExpertOnDevice {
  const void* w1 = nullptr;
  const void* w3 = nullptr;  // null: not gated
  const void* w2 = nullptr;
  DType w1_dtype = DType::kFloat32, w3_dtype = DType::kFloat32, w2_dtype = DType::kFloat32;
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
  Activation activation = Activation::kSilu;
  float limit = std::numeric_limits<float>::infinity();  // as in ActivateArgs
  const ExpertOnDevice* on_device = nullptr;             // on a device, there: of each of `experts`
};

using ExpertsFunction = void (*)(const ExpertsArgs& args, ThreadPool& pool, Workspace& workspace);
const Operation<ExpertsFunction>& run_experts();

// y[t] (+)= sum_j weights[t, j] * rows[places[t, j]], j ascending: the way back from expert order to token order.
struct CombineExpertsArgs {
  const float* rows = nullptr;      // [T * top_k, D]
  const int32_t* places = nullptr;  // [T, top_k]; negative: nothing to add
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
