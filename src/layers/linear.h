// SPDX-License-Identifier: Apache-2.0
//
// y = x W^T + b, with W [out, in] as checkpoints store it, packed once at load. Owns the packed weight. `forward` may
// be called by one thread at a time; it takes scratch from the batch's workspace and runs on the batch's pool.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "coluber/model.h"
#include "kernels/gemm/packed_matrix.h"
#include "layers/weight_loader.h"

namespace coluber {

class Linear {
 public:
  // Takes `name`.weight [out, in] and, with `bias`, `name`.bias [out] (an empty name: "weight" and "bias"). What is
  // missing is reported by the loader's `finish`.
  Linear(WeightLoader loader, std::string_view name, int64_t in_features, int64_t out_features, bool bias);
  // Rows of a wider tensor that the caller took, as `weight_rows` gives them; `bias` [out] or empty.
  Linear(WeightLoader& loader, const TensorView& weight, std::vector<float> bias);

  // x [rows, in], y [rows, out], y not overlapping x. `accumulate` adds to y: the residual connection.
  void forward(const ForwardBatch& batch, const float* x, int64_t rows, float* y, bool accumulate = false) const;
  // The same with row strides of x and y in elements, for slices of wider tensors.
  void forward(const ForwardBatch& batch, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
               bool accumulate = false) const;

  int64_t in_features() const noexcept { return in_; }
  int64_t out_features() const noexcept { return out_; }
  // Whether what the layer around it computes from the products may be rounded to bfloat16, as the weight is.
  bool allows_bf16() const noexcept { return allow_bf16_ && weight_.dtype() == DType::kBFloat16; }

 private:
  int64_t in_, out_;
  bool allow_bf16_;
  PackedMatrix weight_;
  FloatArray bias_;  // empty without
};

// Whether the products of the layer may round activations to 16 bits (GemmArgs::allow_bf16): `--dtype auto` allows it
// where the processor gains by it, on a device unless the engine is deterministic.
bool may_round_activations(const WeightLoader& loader);

// Rows first, first + step, ... of a weight [N, K]; or, of a stack of weights [E, N, K], of all of them one below the
// other.
TensorView weight_rows(const TensorView& weight, int64_t first, int64_t count, int64_t step = 1);

// Runs of `count` rows, from `first` on and every `step` rows behind it.
struct RowRuns {
  int64_t first = 0, count = 0, step = 0;
};
// The rows of `num_runs` runs of each of `parts`, part below part: what a checkpoint has side by side for every head,
// for all heads at once. Releases the weight.
Linear gather_rows(WeightLoader& loader, const TensorView& weight, std::initializer_list<RowRuns> parts,
                   int64_t num_runs);

// Packs a weight [N, K] of any floating type, whose rows may be strided; types that products do not take are widened to
// float32. Counts it for ModelInfo. Gives an empty matrix where the loader only describes.
PackedMatrix pack_weight(WeightLoader& loader, const TensorView& weight);
// The same, neither counted nor left out: in the memory of the device that the model will run on.
PackedMatrix place_weight(WeightLoader& loader, const TensorView& weight);

}  // namespace coluber
