// SPDX-License-Identifier: Apache-2.0
//
// A block of experts: a gate scores them, each token runs through its top_k, and their outputs are added by weight
// (kernels/moe), beside what a shared expert gives to every token:
//
//   y = out(sum_e w_e expert_e(in(x))) + sigmoid(shared_gate(x)) * shared(x)
//
// in and out (to and from a narrower space), the shared expert and its gate are there where the configuration names
// them. `Experts` alone is for routers of another make. Keeps no state between tokens. One forward at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "coluber/model.h"
#include "kernels/moe/experts.h"
#include "layers/linear.h"
#include "layers/mlp.h"
#include "layers/weight_loader.h"

namespace coluber {

struct MoeConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of one expert
  int64_t num_experts = 0;
  int64_t top_k = 0;
  bool renormalize = true;  // weights of the chosen experts sum to `scale`
  // Tensor names below the block's prefix: "<gate>.weight", "<experts>.<n>.<w1>.weight", ...
  std::string gate = "gate";
  std::string experts = "experts";
  std::string w1 = "w1";  // gate of an expert's MLP, or its first product where it is not gated
  std::string w3 = "w3";  // up; empty: not gated
  std::string w2 = "w2";  // down
  // Names of all experts' weights in one tensor, taken where the checkpoint has them: [E, 2F, D], the gates' rows first
  // (not gated: [E, F, D]), and [E, D, F].
  std::string stacked_w1_w3 = "";
  std::string stacked_w2 = "";
  Activation activation = Activation::kSilu;
  float limit = std::numeric_limits<float>::infinity();  // of the activation, as in MlpConfig
  RouterScore score = RouterScore::kSoftmax;
  std::string selection_bias = "";  // name of a tensor [E] that is added to the scores for the choice alone
  int64_t num_groups = 1;           // n_group
  int64_t topk_groups = 1;          // topk_group
  double epsilon = 0;               // added to the sum that weights are divided by
  double scale = 1;                 // routed_scaling_factor
  // Experts that every token runs through, and that the gate weighs (its last rows): three tensors [num_always, F, D],
  // [num_always, F, D], [num_always, D, F] below `always`.
  int64_t num_always = 0;
  std::string always = "shared_experts";
  std::string always_w1 = "gate_proj", always_w3 = "up_proj", always_w2 = "down_proj";
  int64_t latent_size = 0;  // width that the experts work in; 0: hidden_size
  bool latent_bias = false;
  std::string latent_in = "fc1_latent_proj", latent_out = "fc2_latent_proj";
  std::optional<MlpConfig> shared = std::nullopt;
  std::string shared_prefix = "shared_experts";
  std::string shared_gate = "";  // a weight [1, hidden_size]; empty: the shared expert counts whole

  int64_t expert_width() const noexcept { return latent_size > 0 ? latent_size : hidden_size; }
  int64_t experts_a_token() const noexcept { return top_k + num_always; }
};

// The experts without a router.
class Experts {
 public:
  // Takes the experts' tensors; `loader` is scoped to the block. Throws Error(kInvalidConfig) naming each size that
  // makes no sense.
  Experts(const MoeConfig& config, WeightLoader loader);

  // x [T, D] to y [T, D] with ids and weights [T, num_chosen], ids ascending in a row; the id behind the last expert
  // adds nothing. y is overwritten unless `accumulate` and must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, const int32_t* ids, const float* weights, int64_t num_chosen,
               float* y, bool accumulate = false) const;

 private:
  Activation activation_;
  float limit_;
  std::vector<Expert> experts_;
  PlacedArray<ExpertOnDevice> on_device_;  // empty on the host
  bool allow_bf16_;
};

class MoeBlock {
 public:
  // `loader` is scoped to the block ("model.layers.0.block_sparse_moe"). Throws Error(kInvalidConfig) naming each size
  // that makes no sense.
  MoeBlock(const MoeConfig& config, WeightLoader loader);

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false) const;

 private:
  // Routes by x [T, hidden_size] and runs the experts on `in` [T, expert width].
  void route_and_run(const ForwardBatch& batch, const float* x, const float* in, float* y, bool accumulate) const;
  void add_shared(const ForwardBatch& batch, const float* x, float* y) const;

  MoeConfig config_;
  Linear gate_;
  FloatArray selection_bias_;  // [E] or empty
  Experts experts_;
  std::optional<Linear> latent_in_, latent_out_;
  std::optional<Mlp> shared_;
  std::optional<Linear> shared_gate_;
};

}  // namespace coluber
