// SPDX-License-Identifier: Apache-2.0
// The choice of experts on the device: a warp has one token and finds the largest again and again, the values that
// decide in shared memory. What was taken becomes NaN there, which no comparison finds larger.
#include "kernels/cuda_operation.cuh"
#include "kernels/moe/experts.h"

namespace coluber {
namespace {

constexpr unsigned kLanes = 0xffffffffu;
constexpr int64_t kMostShared = 48 * 1024;

__device__ inline float ordered(float value) { return value == value ? value : -INFINITY; }

// Takes the `count` largest of values[0, size), equal ones by place. NaN stands for what was taken, or was never there.
__device__ void take_largest(float* values, int size, int64_t count, int lane) {
  for (int64_t n = 0; n < count; ++n) {
    float best = -INFINITY;
    int place = INT32_MAX;
    for (int e = lane; e < size; e += 32) {
      const float value = values[e];
      if (value > best || (value == best && e < place)) best = value, place = e;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(kLanes, best, offset);
      const int other_place = __shfl_xor_sync(kLanes, place, offset);
      if (other > best || (other == best && other_place < place)) best = other, place = other_place;
    }
    if (lane == 0 && place < size) values[place] = NAN;
    __syncwarp();
  }
}

// Leaves the experts of the best groups in the running.
__device__ void keep_best_groups(const RouterArgs& args, float* choice, float* group_scores, int lane) {
  const int groups = static_cast<int>(args.num_groups), size = static_cast<int>(args.num_experts) / groups;
  for (int g = lane; g < groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(first, choice[e]));
      first = fmaxf(first, choice[e]);
    }
    group_scores[g] = ordered(size > 1 ? first + second : first);
  }
  __syncwarp();
  take_largest(group_scores, groups, args.topk_groups, lane);
  for (int e = lane; e < args.num_experts; e += 32) {
    const float score = group_scores[e / size];
    if (score == score) choice[e] = -INFINITY;
  }
  __syncwarp();
}

__device__ inline float score_of(const RouterArgs& args, float logit, float maximum) {
  return args.score == RouterScore::kSigmoid ? sigmoid(logit) : expf(logit - maximum);
}

__global__ void __launch_bounds__(32) route(const __grid_constant__ RouterArgs args) {
  extern __shared__ float choice[];  // [E], then group scores [num_groups]
  const int lane = threadIdx.x, experts = static_cast<int>(args.num_experts);
  const int all = experts + static_cast<int>(args.num_always);
  const int64_t token = blockIdx.x, chosen = args.top_k + args.num_always;
  const float* logits = args.logits + token * all;
  int32_t* ids = args.expert_ids + token * chosen;
  float* weights = args.weights + token * chosen;
  float maximum = -INFINITY, total = 0.0f;
  for (int e = lane; e < all; e += 32) maximum = fmaxf(maximum, ordered(logits[e]));
  maximum = max_over_lanes<32>(maximum);
  const bool by_score = args.selection_bias != nullptr || args.num_groups > 1;
  const bool normalised = args.score == RouterScore::kSoftmax && (by_score || !args.renormalize || args.epsilon > 0.0f);
  for (int e = lane; normalised && e < all; e += 32) total += expf(logits[e] - maximum);
  const float unit = normalised ? 1.0f / sum_over_lanes<32>(total) : 1.0f;
  for (int e = lane; e < experts; e += 32) {
    const float value = by_score ? score_of(args, logits[e], maximum) * unit : logits[e];
    choice[e] = ordered(value + (args.selection_bias == nullptr ? 0.0f : args.selection_bias[e]));
  }
  __syncwarp();
  if (args.num_groups > 1) keep_best_groups(args, choice, choice + experts, lane);
  take_largest(choice, experts, args.top_k, lane);
  int64_t place = 0;  // of the chosen, ascending
  for (int first = 0; first < experts; first += 32) {
    const bool taken = first + lane < experts && choice[first + lane] != choice[first + lane];
    const unsigned votes = __ballot_sync(kLanes, taken);
    if (taken) ids[place + __popc(votes & ((1u << lane) - 1))] = first + lane;
    place += __popc(votes);
  }
  for (int64_t j = lane; j < args.num_always; j += 32) ids[args.top_k + j] = experts + static_cast<int32_t>(j);
  __syncwarp();
  float sum = 0.0f;
  for (int64_t j = lane; j < chosen; j += 32) {
    weights[j] = score_of(args, logits[ids[j]], maximum) * unit;
    sum += weights[j];
  }
  sum = sum_over_lanes<32>(sum);
  const float factor = args.renormalize ? args.scale / (sum + args.epsilon) : args.scale;
  for (int64_t j = lane; j < chosen; j += 32) weights[j] *= factor;
}

CudaStatus route_on_device(const RouterArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return nullptr;
  const int64_t bytes = static_cast<int64_t>(sizeof(float)) * (args.num_experts + args.num_groups);
  if (bytes > kMostShared) return "so many experts do not run on the device (12288 with their groups do)";
  route<<<static_cast<unsigned>(args.num_tokens), 32, static_cast<size_t>(bytes), stream>>>(args);
  return launch_status();
}

}  // namespace
}  // namespace coluber

COLUBER_CUDA_OPERATION(route_top_k, RouterArgs, route_on_device)
