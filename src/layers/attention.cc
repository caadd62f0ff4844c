// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

#include "base/error.h"
#include "kernels/elementwise/scale.h"
#include "kernels/moe/activation.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

AttentionConfig checked(AttentionConfig config, const WeightLoader& loader) {
  if (config.output_size == 0) config.output_size = config.hidden_size;
  if (config.hidden_size < 1 || config.output_size < 1) {
    throw make_error(ErrorCode::kInvalidConfig,
                     "attention layer '{}': expected positive sizes of input and output, found {} and {}",
                     layer_name_of(loader), config.hidden_size, config.output_size);
  }
  COLUBER_CHECK(config.qkv_proj.empty() || config.gate != OutputGate::kInQuery,
                "attention layer '{}': a gate beside each query and one weight for q, k and v", layer_name_of(loader));
  return config;
}

SoftmaxAttentionConfig softmax_config(const AttentionConfig& config) {
  return {config.num_heads, config.num_kv_heads, config.head_dim, config.rope, config.scale, config.sliding_window};
}

}  // namespace

Attention::Attention(const AttentionConfig& config, WeightLoader loader, std::unique_ptr<KeySelector> selector)
    : SoftmaxAttention(softmax_config(config), loader, std::move(selector)), config_(checked(config, loader)) {
  take_projections(loader);
  take_norms(loader);
}

void Attention::take_projections(WeightLoader loader) {
  const AttentionConfig& c = config_;
  if (c.qkv_proj.empty()) {
    const int64_t q_outputs = c.gate == OutputGate::kInQuery ? 2 * q_width() : q_width();
    q_proj_.emplace(loader, c.q_proj, c.hidden_size, q_outputs, c.qkv_bias);
    k_proj_.emplace(loader, c.k_proj, c.hidden_size, kv_width(), c.qkv_bias);
    v_proj_.emplace(loader, c.v_proj, c.hidden_size, kv_width(), c.qkv_bias);
  } else {
    const int64_t outputs = q_width() + 2 * kv_width();
    const TensorView weight = loader.take(c.qkv_proj + ".weight", Shape{outputs, c.hidden_size});
    std::vector<float> bias;
    if (c.qkv_bias) bias = loader.read_float(c.qkv_proj + ".bias", Shape{outputs});
    auto rows = [&](int64_t first, int64_t count) {
      const std::vector<float> part =
          bias.empty() ? bias : std::vector<float>(bias.begin() + first, bias.begin() + first + count);
      return Linear(loader, weight_rows(weight, first, count), part);
    };
    q_proj_.emplace(rows(0, q_width()));
    k_proj_.emplace(rows(q_width(), kv_width()));
    v_proj_.emplace(rows(q_width() + kv_width(), kv_width()));
  }
  if (c.gate == OutputGate::kProjection) gate_proj_.emplace(loader, c.gate_proj, c.hidden_size, q_width(), c.qkv_bias);
  out_proj_.emplace(loader, c.out_proj, q_width(), c.output_size, c.out_bias);
}

void Attention::take_norms(WeightLoader loader) {
  const AttentionConfig& c = config_;
  if (!c.qk_norm_eps) return;
  const int64_t q_size = c.qk_norm_whole ? q_width() : c.head_dim, k_size = c.qk_norm_whole ? kv_width() : c.head_dim;
  if (c.qk_norm_weight) {
    q_norm_.emplace(loader, c.q_norm, q_size, *c.qk_norm_eps, c.qk_norm_weight_offset);
    k_norm_.emplace(loader, c.k_norm, k_size, *c.qk_norm_eps, c.qk_norm_weight_offset);
  } else {
    q_norm_.emplace(q_size, *c.qk_norm_eps);
    k_norm_.emplace(k_size, *c.qk_norm_eps);
  }
}

Attention::Gate Attention::project_queries(const ForwardBatch& batch, const float* x, float* q) const {
  const int64_t tokens = batch.num_tokens(), heads = tokens * config_.num_heads, dim = config_.head_dim;
  Gate gate;
  if (config_.gate == OutputGate::kInQuery) {
    float* both = batch.workspace->take<float>(2 * heads * dim);
    q_proj_->forward(batch, x, tokens, both);
    gate = {both + dim, 2 * dim};
    if (q_norm_ && !config_.qk_norm_whole) {
      q_norm_->forward(batch, both, 2 * dim, heads, q, dim);
      return gate;
    }
    scale()(ScaleArgs{both, 2 * dim, q, dim, heads, dim}, batch);
  } else {
    q_proj_->forward(batch, x, tokens, q);
  }
  if (config_.gate == OutputGate::kProjection) {
    float* values = batch.workspace->take<float>(heads * dim);
    gate_proj_->forward(batch, x, tokens, values);
    gate = {values, dim};
  }
  if (q_norm_) q_norm_->forward(batch, q, tokens * q_width() / q_norm_->size(), q);
  return gate;
}

void Attention::project_keys_and_values(const ForwardBatch& batch, const float* x, float* k, float* v) const {
  const int64_t tokens = batch.num_tokens();
  k_proj_->forward(batch, x, tokens, k);
  v_proj_->forward(batch, x, tokens, v);
  if (config_.key_multiplier != 1) {
    ScaleArgs scaled{k, kv_width(), k, kv_width(), tokens, kv_width()};
    scaled.factor = static_cast<float>(config_.key_multiplier);
    scale()(scaled, batch);
  }
  if (k_norm_) k_norm_->forward(batch, k, tokens * kv_width() / k_norm_->size(), k);
}

void Attention::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens(), dim = config_.head_dim;
  float* q = batch.workspace->take<float>(tokens * q_width());
  float* k = batch.workspace->take<float>(tokens * kv_width());
  float* v = batch.workspace->take<float>(tokens * kv_width());
  float* out = batch.workspace->take<float>(tokens * q_width());
  const Gate gate = project_queries(batch, x, q);
  project_keys_and_values(batch, x, k, v);
  rotate(batch, q, k);
  AttendOptions options;
  options.x = x;
  attend(batch, q, k, v, out, options);
  if (gate.values != nullptr) {
    const int64_t heads = tokens * config_.num_heads;
    activate()(ActivateArgs{Activation::kSigmoid, gate.values, gate.stride, out, dim, out, dim, heads, dim}, batch);
  }
  out_proj_->forward(batch, out, tokens, y, accumulate);
}

}  // namespace coluber
