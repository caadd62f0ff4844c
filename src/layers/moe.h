// SPDX-License-Identifier: Apache-2.0
//
// A block of experts as MiniMax's and Mixtral's `block_sparse_moe`: a gate scores the experts, each token runs through
// its top_k, and their outputs are added by weight (kernels/moe). Keeps no state between tokens. One forward at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coluber/model.h"
#include "kernels/moe/experts.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

struct MoeConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of one expert
  int64_t num_experts = 0;
  int64_t top_k = 0;
  bool renormalize = true;  // weights of the chosen experts sum to 1
  // Tensor names below the block's prefix: "<gate>.weight", "<experts>.<n>.<w1>.weight", ...
  std::string gate = "gate";
  std::string experts = "experts";
  std::string w1 = "w1";  // gate of an expert's MLP
  std::string w3 = "w3";  // up
  std::string w2 = "w2";  // down
};

class MoeBlock {
 public:
  // `loader` is scoped to the block ("model.layers.0.block_sparse_moe"). Throws Error(kInvalidConfig) naming each size
  // that makes no sense.
  MoeBlock(const MoeConfig& config, WeightLoader& loader);

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  MoeConfig config_;
  Linear gate_;
  std::vector<Expert> experts_;
  bool allow_bf16_ = false;
};

}  // namespace coluber
