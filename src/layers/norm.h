// SPDX-License-Identifier: Apache-2.0
//
// RMS norm over rows with a learnt weight. Owns the weight as float32. Any number of threads may call `forward`, each
// with a batch of its own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "coluber/model.h"
#include "layers/weight_loader.h"

namespace coluber {

class RmsNorm {
 public:
  // Takes `name`.weight [size] (an empty name: "weight"). `weight_offset` is 1 where the weight is centred on zero.
  RmsNorm(WeightLoader loader, std::string_view name, int64_t size, double eps, float weight_offset = 0);

  // x, y: [rows, size]; y may be x.
  void forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y) const;

  const float* weight() const noexcept { return weight_.data(); }  // [size], for fused kernels
  float eps() const noexcept { return eps_; }
  int64_t size() const noexcept { return size_; }

 private:
  int64_t size_;
  float eps_, weight_offset_;
  std::vector<float> weight_;
};

}  // namespace coluber
