// SPDX-License-Identifier: Apache-2.0
#include "layers/norm.h"

#include <string>

#include "kernels/norm/norm.h"

namespace coluber {
namespace {

std::string tensor_name(std::string_view layer, const char* tensor) {
  return layer.empty() ? tensor : std::string(layer) + "." + tensor;
}

}  // namespace

RmsNorm::RmsNorm(WeightLoader loader, std::string_view name, int64_t size, double eps, float weight_offset)
    : size_(size),
      eps_(static_cast<float>(eps)),
      weight_offset_(weight_offset),
      weight_(loader.take_array(tensor_name(name, "weight"), Shape{size})) {}

RmsNorm::RmsNorm(int64_t size, double eps) : size_(size), eps_(static_cast<float>(eps)) {}

void RmsNorm::forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y) const {
  forward(batch, x, size_, rows, y, size_);
}

void RmsNorm::forward(const ForwardBatch& batch, const float* x, int64_t x_stride, int64_t rows, float* y,
                      int64_t y_stride) const {
  rms_norm()(RmsNormArgs{x, x_stride, y, y_stride, rows, size_, weight(), weight_offset_, eps_}, batch);
}

LayerNorm::LayerNorm(WeightLoader loader, std::string_view name, int64_t size, double eps, bool bias,
                     float weight_offset)
    : size_(size),
      eps_(static_cast<float>(eps)),
      weight_offset_(weight_offset),
      weight_(loader.take_array(tensor_name(name, "weight"), Shape{size})) {
  if (bias) bias_ = loader.take_array(tensor_name(name, "bias"), Shape{size});
}

void LayerNorm::forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y) const {
  const RmsNormArgs norm{x, size_, y, size_, rows, size_, weight_.data(), weight_offset_, eps_};
  layer_norm()(LayerNormArgs{norm, bias_.data()}, batch);
}

}  // namespace coluber
