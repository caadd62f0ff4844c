// SPDX-License-Identifier: Apache-2.0
//
// RMS norm of several residual streams side by side, [T, S, D], each over its own D with its own part of one weight.
// Owns the weight as float32. Any number of threads may call `forward`, each with a batch of its own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "coluber/model.h"
#include "layers/weight_loader.h"

namespace coluber {

class StreamsNorm {
 public:
  // Takes `name`.weight [streams * size]. `weight_offset` is 1 where the weight is centred on zero.
  StreamsNorm(WeightLoader loader, std::string_view name, int64_t streams, int64_t size, double eps,
              float weight_offset);

  // x, y: [rows, streams, size]; y may be x.
  void forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y) const;

 private:
  int64_t streams_, size_;
  float eps_, weight_offset_;
  std::vector<float> weight_;
};

}  // namespace coluber
