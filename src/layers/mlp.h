// SPDX-License-Identifier: Apache-2.0
//
// The MLP of decoders:
//
//   y = down_multiplier * down(f(gate_multiplier * gate(x)) * up(x))         without a gate: f(up(x))
//
// Keeps no state between tokens. One forward at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "coluber/model.h"
#include "kernels/moe/activation.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

struct MlpConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  bool bias = false;
  // Tensor names below the layer's prefix, without ".weight"; Lfm2 and Mixtral say w1, w3, w2.
  std::string gate = "gate_proj";  // empty: not gated
  std::string up = "up_proj";
  std::string down = "down_proj";
  std::string gate_up = "";  // instead of gate and up: one weight of both, the gate's rows first
  bool up_first = false;     // in gate_up the rows of up come first
  Activation activation = Activation::kSilu;
  float limit = std::numeric_limits<float>::infinity();  // the gate is cut off above, up on both sides
  double gate_multiplier = 1;
  double down_multiplier = 1;
};

class Mlp {
 public:
  // `loader` is scoped to the MLP ("model.layers.2.feed_forward"). Throws Error(kInvalidConfig) for sizes below 1.
  Mlp(const MlpConfig& config, WeightLoader loader);

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false) const;

 private:
  bool gated() const noexcept { return !config_.gate.empty() || !config_.gate_up.empty(); }
  bool fused() const noexcept { return !config_.gate_up.empty(); }

  MlpConfig config_;
  std::optional<Linear> gate_;  // or the gate and up together
  std::optional<Linear> up_;
  Linear down_;
};

}  // namespace coluber
