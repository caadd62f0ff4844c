// SPDX-License-Identifier: Apache-2.0
//
// The rotary embedding of a layer: its frequencies, where its kernel reads them, and the turn of a step's queries and
// keys in place. Not the tables of a model: each layer has its own few numbers. Where long sequences turn otherwise
// (LongRoPE) it enters the length at which they begin in the configuration, and turns each row as the batch says. One
// thread makes it; `forward` is const.
#pragma once

#include <cstdint>
#include <optional>

#include "coluber/model.h"
#include "kernels/rope/rope.h"
#include "layers/weight_loader.h"
#include "tensor/placed_array.h"

namespace coluber {

class Rotation {
 public:
  // Without `rope` nothing turns. A rotary_dim of 0 is the whole head. Throws Error(kInvalidConfig) naming each field
  // that makes no sense, or where the layers of a model differ in the length at which sequences are long.
  Rotation(const std::optional<RopeConfig>& rope, int64_t head_dim, const WeightLoader& loader);

  struct Heads {
    float* values = nullptr;  // [T, count, head_stride]: the first elements of each head turn
    int64_t stride = 0;       // between tokens
    int64_t count = 0;
  };
  void forward(const ForwardBatch& batch, const Heads& q, const Heads& k, int64_t head_stride) const;

 private:
  std::optional<RopeConfig> rope_;
  PlacedArray<double> frequencies_;       // [rotary_dim / 2]
  PlacedArray<double> long_frequencies_;  // likewise; empty where long sequences turn as others do
  double attention_factor_ = 1.0;
};

}  // namespace coluber
