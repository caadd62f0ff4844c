// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/op_registry.h"

namespace coluber {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// NaN compares as the smallest, so that ids stay valid; the weights then tell.
float ordered(float value) { return value == value ? value : kNever; }

// The `count` largest of values[0, size): places in ids, best first, equal ones by place.
void choose_largest(const float* values, int64_t size, int64_t count, int32_t* ids) {
  int64_t held = 0;
  for (int32_t e = 0; e < size; ++e) {
    if (held == count && !(values[e] > values[ids[held - 1]])) continue;
    int64_t i = std::min(held, count - 1);
    for (; i > 0 && values[e] > values[ids[i - 1]]; --i) ids[i] = ids[i - 1];
    ids[i] = e;
    held = std::min(held + 1, count);
  }
}

float score_of(const RouterArgs& args, float logit, float maximum) {
  return args.score == RouterScore::kSigmoid ? 1.0f / (1.0f + std::exp(-logit)) : std::exp(logit - maximum);
}

// Leaves the experts of the best groups in the running. `best` has room for num_groups.
void keep_best_groups(const RouterArgs& args, float* choice, float* group_scores, int32_t* best) {
  const int64_t size = args.num_experts / args.num_groups;
  for (int64_t g = 0; g < args.num_groups; ++g) {
    float first = kNever, second = kNever;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(first, choice[e]));
      first = std::max(first, choice[e]);
    }
    group_scores[g] = size > 1 ? first + second : first;
  }
  choose_largest(group_scores, args.num_groups, args.topk_groups, best);
  std::sort(best, best + args.topk_groups);
  for (int64_t g = 0, kept = 0; g < args.num_groups; ++g) {
    if (kept < args.topk_groups && best[kept] == g) {
      ++kept;
    } else {
      std::fill(choice + g * size, choice + (g + 1) * size, kNever);
    }
  }
}

// Scratch of one thread.
struct RouterScratch {
  float* choice = nullptr;        // [E] what the choice goes by
  float* group_scores = nullptr;  // [num_groups]
  int32_t* best = nullptr;        // [num_groups]
};

// One token: ids ascending, weights beside them.
void route_token(const RouterArgs& args, int64_t token, const RouterScratch& scratch) {
  const int64_t all = args.num_experts + args.num_always, chosen = args.top_k + args.num_always;
  const float* logits = args.logits + token * all;
  int32_t* ids = args.expert_ids + token * chosen;
  float* weights = args.weights + token * chosen;
  float maximum = kNever, total = 0;
  for (int64_t e = 0; e < all; ++e) maximum = std::max(maximum, ordered(logits[e]));
  // Logits order experts as their scores do, and keep apart what scores round to equals.
  const bool by_score = args.selection_bias != nullptr || args.num_groups > 1;
  const bool normalised = args.score == RouterScore::kSoftmax && (by_score || !args.renormalize || args.epsilon > 0);
  for (int64_t e = 0; normalised && e < all; ++e) total += std::exp(logits[e] - maximum);
  const float unit = normalised ? 1.0f / total : 1.0f;
  for (int64_t e = 0; e < args.num_experts; ++e) {
    const float value = by_score ? score_of(args, logits[e], maximum) * unit : logits[e];
    scratch.choice[e] = ordered(value + (args.selection_bias == nullptr ? 0.0f : args.selection_bias[e]));
  }
  if (args.num_groups > 1) keep_best_groups(args, scratch.choice, scratch.group_scores, scratch.best);
  choose_largest(scratch.choice, args.num_experts, args.top_k, ids);
  std::sort(ids, ids + args.top_k);
  for (int64_t j = args.top_k; j < chosen; ++j) ids[j] = static_cast<int32_t>(args.num_experts + j - args.top_k);
  float sum = 0;
  for (int64_t j = 0; j < chosen; ++j) {
    weights[j] = score_of(args, logits[ids[j]], maximum) * unit;
    sum += weights[j];
  }
  const float factor = args.renormalize ? args.scale / (sum + args.epsilon) : args.scale;
  for (int64_t j = 0; j < chosen; ++j) weights[j] *= factor;
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
  for (int64_t i = 0; i < rows; ++i) {
    if (args.expert_ids[i] < experts) ++next[args.expert_ids[i]];
  }
  grouping.first_row[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    grouping.first_row[e + 1] = grouping.first_row[e] + next[e];
    next[e] = grouping.first_row[e];
  }
  for (int64_t i = 0; i < rows; ++i) {
    if (args.expert_ids[i] >= experts) {
      grouping.places[i] = -1;
      continue;
    }
    const int32_t row = next[args.expert_ids[i]]++;
    grouping.places[i] = row;
    grouping.tokens[row] = static_cast<int32_t>(i / args.top_k);
  }
  return grouping;
}

void route_tokens(const RouterArgs& args, ThreadPool& pool, Workspace& workspace) {
  COLUBER_CHECK(args.top_k > 0 && args.top_k <= args.num_experts, "{} of {} experts", args.top_k, args.num_experts);
  COLUBER_CHECK(args.num_groups > 0 && args.num_experts % args.num_groups == 0 && args.topk_groups > 0 &&
                    args.topk_groups <= args.num_groups,
                "{} experts in {} groups, {} of them chosen", args.num_experts, args.num_groups, args.topk_groups);
  WorkspaceScope scope(workspace);
  float* choice = workspace.take<float>(pool.size() * args.num_experts);
  float* group_scores = workspace.take<float>(pool.size() * args.num_groups);
  int32_t* best = workspace.take<int32_t>(pool.size() * args.num_groups);
  auto body = [&](int64_t begin, int64_t end, int thread) {
    const RouterScratch scratch{choice + thread * args.num_experts, group_scores + thread * args.num_groups,
                                best + thread * args.num_groups};
    for (int64_t t = begin; t < end; ++t) route_token(args, t, scratch);
  };
  constexpr int64_t kGrain = 32;
  if (args.num_tokens <= kGrain) return body(0, args.num_tokens, 0);
  pool.parallel_for(args.num_tokens, kGrain, body);
}

void run_grouped(const ExpertsArgs& args, ThreadPool& pool, Workspace& workspace) {
  if (args.num_tokens == 0) return;
  WorkspaceScope scope(workspace);
  const int64_t width = args.experts[0].w1.k(), inner = args.experts[0].w1.n(), rows = args.num_tokens * args.top_k;
  const Grouping grouping = group_by_expert(args, workspace);
  const int64_t computed = grouping.first_row[args.experts.size()];  // without those of no expert
  // One token's rows are all its own x: nothing to gather.
  const bool gather = args.num_tokens > 1;
  float* x = gather ? workspace.take<float>(rows * width) : nullptr;
  const bool gated = args.experts[0].w3.n() > 0;
  float* gate = workspace.take<float>(rows * inner);
  float* up = gated ? workspace.take<float>(rows * inner) : nullptr;
  float* out = workspace.take<float>(rows * width);
  if (gather) {
    pool.parallel_for(rows, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < std::min<int64_t>(end, computed); ++i) {
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
    if (gated) multiply(args.experts[e].w3, rows_of_expert, m, up + first * inner);
  }
  activate()(ActivateArgs{args.activation, gate, inner, up, inner, gate, inner, computed, inner, args.limit}, pool);
  for (size_t e = 0; e < args.experts.size(); ++e) {
    const int64_t first = grouping.first_row[e], m = grouping.first_row[e + 1] - first;
    if (m > 0) multiply(args.experts[e].w2, gate + first * inner, m, out + first * width);
  }
  combine_experts()(CombineExpertsArgs{out, grouping.places, args.weights, args.y, args.num_tokens, args.top_k, width,
                                       args.accumulate},
                    pool);
}

}  // namespace

const Operation<RouterFunction>& route_top_k() {
  static const Operation<RouterFunction> operation("route_top_k", {{"loop", Isa::kRef, route_tokens}});
  return operation;
}

const Operation<ExpertsFunction>& run_experts() {
  static const Operation<ExpertsFunction> operation("run_experts", {{"grouped", Isa::kRef, run_grouped}});
  return operation;
}

namespace {
const RegisterOperations kEntered(route_top_k, run_experts);
}

}  // namespace coluber
