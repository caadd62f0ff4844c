// SPDX-License-Identifier: Apache-2.0
//
// The gated MLP of most decoders: y = down(silu(gate(x)) * up(x)). Keeps no state between tokens. One forward at a
// time.
#pragma once

#include <cstdint>
#include <string>

#include "coluber/model.h"
#include "layers/linear.h"
#include "layers/weight_loader.h"

namespace coluber {

struct GatedMlpConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  bool bias = false;
  // Tensor names below the layer's prefix, without ".weight"; Lfm2 and Mixtral say w1, w3, w2.
  std::string gate = "gate_proj";
  std::string up = "up_proj";
  std::string down = "down_proj";
};

class GatedMlp {
 public:
  // `loader` is scoped to the MLP ("model.layers.2.feed_forward"). Throws Error(kInvalidConfig) for sizes below 1.
  GatedMlp(const GatedMlpConfig& config, WeightLoader& loader);

  // x [T, hidden_size] to y [T, hidden_size], overwritten unless `accumulate`; y must not overlap x.
  void forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate = false);

 private:
  GatedMlpConfig config_;
  Linear gate_, up_, down_;
};

}  // namespace coluber
