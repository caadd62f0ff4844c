// SPDX-License-Identifier: Apache-2.0
//
// RMS norm and layer norm over rows, with or without a learnt weight. Own their weights as float32. Any number of
// threads may call `forward`, each with a batch of its own.
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
  // Without a weight.
  RmsNorm(int64_t size, double eps);

  // x, y: [rows, size]; y may be x.
  void forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y) const;
  // The same with row strides in elements, for slices of wider tensors.
  void forward(const ForwardBatch& batch, const float* x, int64_t x_stride, int64_t rows, float* y,
               int64_t y_stride) const;

  const float* weight() const noexcept { return weight_.data(); }  // [size] or null, for fused kernels
  float eps() const noexcept { return eps_; }
  int64_t size() const noexcept { return size_; }

 private:
  int64_t size_;
  float eps_, weight_offset_ = 0;
  FloatArray weight_;
};

class LayerNorm {
 public:
  // Takes `name`.weight and, with `bias`, `name`.bias, both [size] (an empty name: "weight" and "bias").
  LayerNorm(WeightLoader loader, std::string_view name, int64_t size, double eps, bool bias = true,
            float weight_offset = 0);

  // x, y: [rows, size]; y may be x.
  void forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y) const;

  int64_t size() const noexcept { return size_; }

 private:
  int64_t size_;
  float eps_, weight_offset_;
  FloatArray weight_, bias_;
};

}  // namespace coluber
