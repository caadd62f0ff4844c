// SPDX-License-Identifier: Apache-2.0
#include "layers/norm.h"

#include <string>

#include "kernels/norm/norm.h"

namespace coluber {

RmsNorm::RmsNorm(WeightLoader loader, std::string_view name, int64_t size, double eps, float weight_offset)
    : size_(size),
      eps_(static_cast<float>(eps)),
      weight_offset_(weight_offset),
      weight_(loader.take_float(name.empty() ? "weight" : std::string(name) + ".weight", Shape{size})) {}

void RmsNorm::forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y) const {
  rms_norm()(RmsNormArgs{x, size_, y, size_, rows, size_, weight_.data(), weight_offset_, eps_}, *batch.thread_pool);
}

}  // namespace coluber
