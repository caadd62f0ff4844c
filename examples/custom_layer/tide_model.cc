// SPDX-License-Identifier: Apache-2.0
//
// A small model of tide layers, registered under its own model_type: embedding, residual blocks of RMS norm and tide
// layer, and an output tied to the embedding. It reads its sizes from the shapes of its tensors.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "coluber/error.h"
#include "coluber/registry.h"
#include "tide_layer.h"

namespace tide {
namespace {

using coluber::DType;
using coluber::Error;
using coluber::ErrorCode;
using coluber::Shape;
using coluber::TensorView;

class TideModel : public coluber::Model {
 public:
  explicit TideModel(coluber::ModelLoadContext& context);
  const coluber::ModelInfo& info() const noexcept override { return info_; }
  void forward(const coluber::ForwardBatch& batch) override;

 private:
  std::vector<float> take(const coluber::WeightSource& weights, const std::string& name, const Shape& shape);
  void norm(const float* x, float* out, int64_t tokens) const;

  int64_t vocab_size_ = 0;
  int64_t hidden_size_ = 0;
  std::vector<float> embedding_;  // [V, D]
  std::vector<std::unique_ptr<TideLayer>> layers_;
  coluber::ModelInfo info_;
  std::vector<float> residual_, normed_, mixed_;  // [T, D]
};

std::vector<float> TideModel::take(const coluber::WeightSource& weights, const std::string& name, const Shape& shape) {
  const TensorView tensor = weights.get(name);
  if (tensor.dtype != DType::kFloat32 || !(tensor.shape == shape))
    throw Error(ErrorCode::kInvalidData, weights.describe() + ": tensor '" + name + "' is " +
                                             std::string(dtype_name(tensor.dtype)) + " " + tensor.shape.to_string() +
                                             ", expected float32 " + shape.to_string());
  std::vector<float> values(static_cast<size_t>(shape.count()));
  std::memcpy(values.data(), tensor.data, values.size() * sizeof(float));
  info_.parameters += shape.count();
  info_.weight_bytes += tensor.size_bytes();
  return values;
}

TideModel::TideModel(coluber::ModelLoadContext& context) {
  const coluber::WeightSource& weights = context.weights;
  const Shape table = weights.get("embedding").shape;
  if (table.rank() != 2)
    throw Error(ErrorCode::kInvalidData,
                weights.describe() + ": 'embedding' has shape " + table.to_string() + ", expected [V, D]");
  vocab_size_ = table[0];
  hidden_size_ = table[1];
  embedding_ = take(weights, "embedding", table);
  while (weights.contains("layers." + std::to_string(layers_.size()) + ".decay")) {
    const std::string prefix = "layers." + std::to_string(layers_.size());
    TideWeights tensors{take(weights, prefix + ".gate_weight", Shape{hidden_size_}),
                        take(weights, prefix + ".gate_bias", Shape{hidden_size_}),
                        take(weights, prefix + ".decay", Shape{hidden_size_}),
                        take(weights, prefix + ".table", Shape{TideLayer::kTableRows, hidden_size_})};
    layers_.push_back(std::make_unique<TideLayer>(prefix + ".tide", hidden_size_, std::move(tensors)));
    context.config.register_layer(*layers_.back());
    info_.layers.push_back({layers_.back()->layer_name(), "tide", layers_.back().get()});
  }
  info_.architecture = "tide";
  info_.vocab_size = vocab_size_;
  info_.hidden_size = hidden_size_;
  info_.num_layers = static_cast<int64_t>(layers_.size());
  info_.parameters_by_dtype = {{DType::kFloat32, info_.parameters}};
  info_.matmul_parameters = vocab_size_ * hidden_size_;
  info_.streamed_bytes = info_.weight_bytes;
}

void TideModel::norm(const float* x, float* out, int64_t tokens) const {
  for (int64_t t = 0; t < tokens; ++t) {
    float squares = 0;
    for (int64_t d = 0; d < hidden_size_; ++d) squares += x[t * hidden_size_ + d] * x[t * hidden_size_ + d];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(hidden_size_) + 1e-5f);
    for (int64_t d = 0; d < hidden_size_; ++d) out[t * hidden_size_ + d] = x[t * hidden_size_ + d] * scale;
  }
}

void TideModel::forward(const coluber::ForwardBatch& batch) {
  const int64_t tokens = batch.num_tokens();
  const auto size = static_cast<size_t>(tokens * hidden_size_);
  residual_.resize(size);
  normed_.resize(size);
  mixed_.resize(size);
  for (int64_t t = 0; t < tokens; ++t)
    std::memcpy(&residual_[static_cast<size_t>(t * hidden_size_)],
                &embedding_[static_cast<size_t>(batch.token_ids[static_cast<size_t>(t)] * hidden_size_)],
                static_cast<size_t>(hidden_size_) * sizeof(float));
  batch.record_hidden(0, residual_.data(), hidden_size_);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    norm(residual_.data(), normed_.data(), tokens);
    layers_[layer]->forward(batch, normed_.data(), mixed_.data());
    for (size_t i = 0; i < size; ++i) residual_[i] += mixed_[i];
    batch.record_hidden(static_cast<int>(layer) + 1, residual_.data(), hidden_size_);
  }
  norm(residual_.data(), normed_.data(), tokens);
  float* logits = batch.logits;
  for (const int32_t row : batch.logits_rows) {
    for (int64_t v = 0; v < vocab_size_; ++v) {
      float sum = 0;
      for (int64_t d = 0; d < hidden_size_; ++d)
        sum += normed_[static_cast<size_t>(row * hidden_size_ + d)] *
               embedding_[static_cast<size_t>(v * hidden_size_ + d)];
      *logits++ = sum;
    }
  }
}

const coluber::RegisterModel kRegister({"tide", {"TideForCausalLM"}, [](coluber::ModelLoadContext& context) {
                                          return std::unique_ptr<coluber::Model>(new TideModel(context));
                                        }});

}  // namespace
}  // namespace tide
