// SPDX-License-Identifier: Apache-2.0
#include "tide_layer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "coluber/error.h"

namespace tide {

using coluber::CommonAttentionMetadata;
using coluber::DType;
using coluber::Error;
using coluber::ErrorCode;
using coluber::Shape;
using coluber::TensorView;

const TideMetadata& TideMetadataBuilder::build(int64_t, const CommonAttentionMetadata& common, bool) {
  metadata_.rows.clear();
  for (int64_t row = 0; row < common.num_reqs; ++row) {
    const int64_t tokens = common.query_len(row);
    if (tokens == 0) continue;  // padding
    metadata_.rows.push_back({common.query_start_loc[static_cast<size_t>(row)], tokens, common.block_table.at(row, 0),
                              common.num_computed(row) > 0});
  }
  return metadata_;
}

coluber::BuilderFactory TideBackend::get_builder_cls() const {
  return [](const coluber::KVCacheSpec& spec, std::vector<std::string> layer_names, const coluber::EngineConfig&,
            coluber::Device&) {
    const auto* mamba = std::get_if<coluber::MambaSpec>(&spec);
    // Column 0 of the block table is the running state in cache mode none alone.
    if (mamba == nullptr || mamba->mamba_cache_mode != coluber::MambaCacheMode::kNone)
      throw Error(ErrorCode::kInvalidConfig, "the tide layer '" + layer_names.front() +
                                                 "' works in mamba_cache_mode none only; start the engine with it");
    return std::make_unique<TideMetadataBuilder>();
  };
}

namespace {
[[maybe_unused]] const bool kRegistered = [] {
  coluber::register_custom_backend("tide", std::make_unique<TideBackend>());
  return true;
}();
}  // namespace

TideLayer::TideLayer(std::string name, int64_t hidden_size, TideWeights weights)
    : MambaBase(std::move(name)), hidden_size_(hidden_size), weights_(std::move(weights)) {
  const auto channels = static_cast<size_t>(hidden_size);
  if (hidden_size < 1 || weights_.gate_weight.size() != channels || weights_.gate_bias.size() != channels ||
      weights_.decay.size() != channels || weights_.table.size() != channels * kTableRows)
    throw Error(ErrorCode::kInvalidData, "the weights of the tide layer '" + layer_name() + "' are not those of " +
                                             std::to_string(hidden_size) + " channels");
}

std::vector<Shape> TideLayer::get_state_shape() const { return {Shape{kWindow - 1}, Shape{hidden_size_}}; }
std::vector<DType> TideLayer::get_state_dtype() const { return {DType::kInt32, DType::kFloat32}; }

void TideLayer::forward(const coluber::ForwardBatch& batch, const float* x, float* y) const {
  for (const TideMetadata::Row& row : batch.metadata<TideMetadata>(*this).rows)
    forward_row(row, batch.token_ids.data() + row.first_token, x + row.first_token * hidden_size_,
                y + row.first_token * hidden_size_);
}

void TideLayer::forward_row(const TideMetadata::Row& row, const int32_t* ids, const float* x, float* y) const {
  const TensorView& windows = kv_cache()[0];
  const TensorView& averages = kv_cache()[1];
  // Blocks lie a stride apart that belongs to the cache, not to the layer.
  int32_t* window = windows.as<int32_t>() + row.slot * windows.strides[0];
  float* average = averages.as<float>() + row.slot * averages.strides[0];
  if (!row.has_state) {
    std::fill_n(window, kWindow - 1, -1);
    std::fill_n(average, hidden_size_, 0.0f);
  }
  for (int64_t t = 0; t < row.num_tokens; ++t) {
    uint32_t hash = 2166136261u;
    for (int64_t i = 0; i < kWindow - 1; ++i) hash = (hash ^ static_cast<uint32_t>(window[i])) * 16777619u;
    hash = (hash ^ static_cast<uint32_t>(ids[t])) * 16777619u;
    const float* remembered = weights_.table.data() + static_cast<int64_t>(hash % kTableRows) * hidden_size_;
    for (int64_t d = 0; d < hidden_size_; ++d) {
      const auto c = static_cast<size_t>(d);
      const float value = x[t * hidden_size_ + d];
      const float gate = 1.0f / (1.0f + std::exp(-(weights_.gate_weight[c] * value + weights_.gate_bias[c])));
      average[d] = weights_.decay[c] * average[d] + (1.0f - weights_.decay[c]) * gate * value;
      y[t * hidden_size_ + d] = average[d] + remembered[d];
    }
    std::copy(window + 1, window + kWindow - 1, window);
    window[kWindow - 2] = ids[t];
  }
}

}  // namespace tide
