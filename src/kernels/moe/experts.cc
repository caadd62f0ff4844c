// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/gemm/gemm.h"
#include "kernels/moe/silu_mul.h"

namespace coluber {
namespace {

// The top_k largest of one token's logits: ids ascending, weights beside them.
void route_token(const RouterArgs& args, int64_t token) {
  const float* logits = args.logits + token * args.num_experts;
  int32_t* ids = args.expert_ids + token * args.top_k;
  float* weights = args.weights + token * args.top_k;
  // NaN compares as the smallest, so that ids stay valid; the weights then tell.
  auto key = [&](int32_t e) { return logits[e] == logits[e] ? logits[e] : -std::numeric_limits<float>::infinity(); };
  int64_t held = 0;  // ids[0, held): the best so far, best first, equal ones by id
  for (int32_t e = 0; e < args.num_experts; ++e) {
    if (held == args.top_k && !(key(e) > key(ids[held - 1]))) continue;
    int64_t i = std::min(held, args.top_k - 1);
    for (; i > 0 && key(e) > key(ids[i - 1]); --i) ids[i] = ids[i - 1];
    ids[i] = e;
    held = std::min(held + 1, args.top_k);
  }
  const float maximum = key(ids[0]);
  std::sort(ids, ids + args.top_k);
  float sum = 0;
  for (int64_t e = 0; e < (args.renormalize ? args.top_k : args.num_experts); ++e) {
    sum += std::exp(logits[args.renormalize ? ids[e] : e] - maximum);
  }
  for (int64_t j = 0; j < args.top_k; ++j) weights[j] = std::exp(logits[ids[j]] - maximum) / sum;
}

// Rows of all tokens, those of one expert together, in the order of tokens.
struct Grouping {
  int32_t* first_row = nullptr;  // [E + 1]
  int32_t* places = nullptr;     // [T, top_k] row of each choice
  int32_t* tokens = nullptr;     // [T * top_k] token of each row
};

Grouping group_by_expert(const ExpertsArgs& args, Workspace& workspace) {
  const int64_t experts = static_cast<int64_t>(args.experts.size()), rows = args.num_tokens * args.top_k;
  Grouping grouping{workspace.take<int32_t>(experts + 1), workspace.take<int32_t>(rows), workspace.take<int32_t>(rows)};
  int32_t* next = workspace.take<int32_t>(experts);
  std::fill_n(next, experts, 0);
  for (int64_t i = 0; i < rows; ++i) ++next[args.expert_ids[i]];
  grouping.first_row[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    grouping.first_row[e + 1] = grouping.first_row[e] + next[e];
    next[e] = grouping.first_row[e];
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t row = next[args.expert_ids[i]]++;
    grouping.places[i] = row;
    grouping.tokens[row] = static_cast<int32_t>(i / args.top_k);
  }
  return grouping;
}

}  // namespace

void route_top_k(const RouterArgs& args, ThreadPool& pool) {
  auto body = [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) route_token(args, t);
  };
  constexpr int64_t kGrain = 32;
  if (args.num_tokens <= kGrain) return body(0, args.num_tokens, 0);
  pool.parallel_for(args.num_tokens, kGrain, body);
}

void run_experts(const ExpertsArgs& args, ThreadPool& pool, Workspace& workspace) {
  if (args.num_tokens == 0) return;
  WorkspaceScope scope(workspace);
  const int64_t width = args.experts[0].w1.k(), inner = args.experts[0].w1.n(), rows = args.num_tokens * args.top_k;
  const Grouping grouping = group_by_expert(args, workspace);
  // One token's rows are all its own x: nothing to gather.
  const bool gather = args.num_tokens > 1;
  float* x = gather ? workspace.take<float>(rows * width) : nullptr;
  float* gate = workspace.take<float>(rows * inner);
  float* up = workspace.take<float>(rows * inner);
  float* out = workspace.take<float>(rows * width);
  if (gather) {
    pool.parallel_for(rows, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(x + i * width, args.x + grouping.tokens[i] * width, static_cast<size_t>(width) * sizeof(float));
      }
    });
  }
  auto multiply = [&](const PackedMatrix& w, const float* a, int64_t m, float* c) {
    gemm()(GemmArgs{.a = a, .lda = w.k(), .m = m, .w = &w, .c = c, .ldc = w.n(), .allow_bf16 = args.allow_bf16}, pool,
           workspace);
  };
  for (size_t e = 0; e < args.experts.size(); ++e) {
    const int64_t first = grouping.first_row[e], m = grouping.first_row[e + 1] - first;
    if (m == 0) continue;
    const float* rows_of_expert = gather ? x + first * width : args.x;
    multiply(args.experts[e].w1, rows_of_expert, m, gate + first * inner);
    multiply(args.experts[e].w3, rows_of_expert, m, up + first * inner);
  }
  silu_mul()(SiluMulArgs{gate, up, gate, rows * inner}, pool);
  for (size_t e = 0; e < args.experts.size(); ++e) {
    const int64_t first = grouping.first_row[e], m = grouping.first_row[e + 1] - first;
    if (m > 0) multiply(args.experts[e].w2, gate + first * inner, m, out + first * width);
  }
  combine_experts()(CombineExpertsArgs{out, grouping.places, args.weights, args.y, args.num_tokens, args.top_k, width,
                                       args.accumulate},
                    pool);
}

}  // namespace coluber
