// SPDX-License-Identifier: Apache-2.0
#include "layers/streams_norm.h"

#include <string>

#include "kernels/norm/norm.h"

namespace coluber {

StreamsNorm::StreamsNorm(WeightLoader loader, std::string_view name, int64_t streams, int64_t size, double eps,
                         float weight_offset)
    : streams_(streams),
      size_(size),
      eps_(static_cast<float>(eps)),
      weight_offset_(weight_offset),
      weight_(loader.take_float(std::string(name) + ".weight", Shape{streams * size})) {}

void StreamsNorm::forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y) const {
  for (int64_t s = 0; s < streams_; ++s) {
    RmsNormArgs args;
    args.x = x + s * size_;
    args.y = y + s * size_;
    args.x_stride = args.y_stride = streams_ * size_;
    args.rows = rows;
    args.cols = size_;
    args.weight = weight_.data() + s * size_;
    args.weight_offset = weight_offset_;
    args.eps = eps_;
    rms_norm()(args, batch);
  }
}

}  // namespace coluber
