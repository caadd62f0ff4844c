// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

std::string tensor_name(std::string_view layer, std::string_view tensor) {
  return layer.empty() ? std::string(tensor) : std::string(layer) + "." + std::string(tensor);
}

}  // namespace

PackedMatrix pack_weight(WeightLoader& loader, const TensorView& weight) {
  const bool direct =
      weight.dtype == DType::kFloat32 || weight.dtype == DType::kBFloat16 || weight.dtype == DType::kFloat16;
  const int64_t parameters = weight.shape.count();
  loader.count_matmul(parameters, dtype_bytes(direct ? weight.dtype : DType::kFloat32, parameters));
  if (loader.describe_only()) return {};
  PackedMatrix packed;
  if (direct) {
    packed = PackedMatrix::pack(weight, loader.thread_pool());
  } else {
    std::vector<float> widened(static_cast<size_t>(parameters));
    convert_to_float(weight.data, weight.dtype, parameters, widened.data());
    packed =
        PackedMatrix::pack(TensorView::contiguous(widened.data(), DType::kFloat32, weight.shape), loader.thread_pool());
  }
  loader.release(weight);
  return packed;
}

Linear::Linear(WeightLoader loader, std::string_view name, int64_t in_features, int64_t out_features, bool bias)
    : in_(in_features),
      out_(out_features),
      allow_bf16_(loader.config().allow_bf16_products && bf16_products_pay()),
      weight_(pack_weight(loader, loader.take(tensor_name(name, "weight"), Shape{out_features, in_features}))) {
  if (bias) bias_ = loader.take_float(tensor_name(name, "bias"), Shape{out_features});
}

void Linear::forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y, bool accumulate) const {
  forward(batch, x, in_, rows, y, out_, accumulate);
}

void Linear::forward(const ForwardBatch& batch, const float* x, int64_t x_stride, int64_t rows, float* y,
                     int64_t y_stride, bool accumulate) const {
  const float* bias = bias_.empty() ? nullptr : bias_.data();
  gemm()(GemmArgs{x, x_stride, rows, &weight_, bias, y, y_stride, accumulate, allow_bf16_}, *batch.thread_pool,
         *batch.workspace);
}

}  // namespace coluber
