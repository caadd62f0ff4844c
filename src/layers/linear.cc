// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include <cstring>
#include <string>

#include "base/block_type.h"
#include "base/dtype.h"
#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

std::string tensor_name(std::string_view layer, std::string_view tensor) {
  return layer.empty() ? std::string(tensor) : std::string(layer) + "." + std::string(tensor);
}

// Types that products take as they are.
bool is_direct(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16 ||
         find_block_type(dtype) != nullptr;
}

}  // namespace

// A device's 16-bit products sum in an order that depends on how many rows there are.
bool may_round_activations(const WeightLoader& loader) {
  const EngineConfig& config = loader.config();
  if (!config.allow_bf16_products) return false;
  return loader.device().is_host() ? bf16_products_pay() : !config.deterministic;
}

TensorView weight_rows(const TensorView& weight, int64_t first, int64_t count, int64_t step) {
  const int64_t cols = weight.shape[weight.shape.rank() - 1];
  COLUBER_CHECK(weight.shape.rank() >= 2 && weight.is_contiguous() && first >= 0 && count >= 0 && step > 0 &&
                    (count == 0 || (first + (count - 1) * step + 1) * cols <= weight.shape.count()),
                "rows {} and every {} after it, {} in all, of a weight {}", first, step, count,
                weight.shape.to_string());
  TensorView rows = weight;
  rows.data += dtype_bytes(weight.dtype, first * cols);
  rows.shape = Shape{count, cols};
  rows.strides = Shape{step * cols, 1};
  return rows;
}

Linear gather_rows(WeightLoader& loader, const TensorView& weight, std::initializer_list<RowRuns> parts,
                   int64_t num_runs) {
  int64_t rows = 0;
  for (const RowRuns& part : parts) rows += num_runs * part.count;
  if (loader.describe_only()) return Linear(loader, weight_rows(weight, 0, rows), {});
  TensorView gathered = weight;
  gathered.shape = Shape{rows, weight.shape[1]};
  std::vector<std::byte> bytes(static_cast<size_t>(gathered.size_bytes()));
  gathered.data = bytes.data();
  int64_t at = 0;
  for (const RowRuns& part : parts) {
    for (int64_t run = 0; run < num_runs; ++run, at += part.count) {
      const TensorView from = weight_rows(weight, part.first + run * part.step, part.count);
      std::memcpy(weight_rows(gathered, at, part.count).data, from.data, static_cast<size_t>(from.size_bytes()));
    }
  }
  Linear linear(loader, gathered, {});
  loader.release(weight);
  return linear;
}

PackedMatrix pack_weight(WeightLoader& loader, const TensorView& weight) {
  const int64_t parameters = weight.shape.count();
  loader.count_matmul(parameters, dtype_bytes(is_direct(weight.dtype) ? weight.dtype : DType::kFloat32, parameters));
  if (loader.describe_only()) return {};
  return place_weight(loader, weight);
}

PackedMatrix place_weight(WeightLoader& loader, const TensorView& weight) {
  const auto placed = [&loader](const TensorView& values) {
    return loader.device().is_host() ? PackedMatrix::pack(values, loader.thread_pool())
                                     : PackedMatrix::upload(values, loader.device());
  };
  PackedMatrix packed;
  if (is_direct(weight.dtype)) {
    packed = placed(weight);
  } else {
    std::vector<float> widened(static_cast<size_t>(weight.shape.count()));
    const int64_t rows = weight.shape[0], cols = weight.shape[1];
    for (int64_t r = 0; r < rows; ++r) {
      convert_to_float(weight.data + dtype_bytes(weight.dtype, r * weight.strides[0]), weight.dtype, cols,
                       widened.data() + r * cols);
    }
    packed = placed(TensorView::contiguous(widened.data(), DType::kFloat32, weight.shape));
  }
  loader.release(weight);
  return packed;
}

Linear::Linear(WeightLoader loader, std::string_view name, int64_t in_features, int64_t out_features, bool bias)
    : in_(in_features),
      out_(out_features),
      allow_bf16_(may_round_activations(loader)),
      weight_(pack_weight(loader, loader.take(tensor_name(name, "weight"), Shape{out_features, in_features}))) {
  if (bias) bias_ = loader.take_array(tensor_name(name, "bias"), Shape{out_features});
}

Linear::Linear(WeightLoader& loader, const TensorView& weight, std::vector<float> bias)
    : in_(weight.shape[1]),
      out_(weight.shape[0]),
      allow_bf16_(may_round_activations(loader)),
      weight_(pack_weight(loader, weight)),
      bias_(loader.place(std::move(bias))) {
  COLUBER_CHECK(bias_.empty() || bias_.size() == out_, "{} outputs with a bias of {}", out_, bias_.size());
}

void Linear::forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y, bool accumulate) const {
  forward(batch, x, in_, rows, y, out_, accumulate);
}

void Linear::forward(const ForwardBatch& batch, const float* x, int64_t x_stride, int64_t rows, float* y,
                     int64_t y_stride, bool accumulate) const {
  gemm()(GemmArgs{x, x_stride, rows, &weight_, bias_.data(), y, y_stride, accumulate, allow_bf16_}, batch);
}

}  // namespace coluber
