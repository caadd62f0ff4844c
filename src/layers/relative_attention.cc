// SPDX-License-Identifier: Apache-2.0
#include "layers/relative_attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

RelativeAttentionConfig checked(const RelativeAttentionConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("relative dim", config.relative_dim);
  checks.expect_positive("positions with a bias", config.extent);
  checks.expect(
      !config.log_floor || *config.log_floor > 0,
      fmt::format("floor of the logarithm: expected a positive number, found {}", config.log_floor.value_or(0)));
  checks.finish("attention", loader);
  return config;
}

SoftmaxAttentionConfig softmax_config(const RelativeAttentionConfig& c) {
  SoftmaxAttentionConfig config{c.num_heads, c.num_kv_heads, c.head_dim};
  config.scale = 1.0 / static_cast<double>(std::max<int64_t>(c.head_dim, 1));
  config.sliding_window = c.sliding_window;
  return config;
}

// Stored [relative_dim, extent] by distance; the kernel wants a query's own position last.
Linear take_profiles(WeightLoader& loader, const RelativeAttentionConfig& c) {
  const std::vector<float> stored = loader.take_float("rel_logits_proj.proj", Shape{c.relative_dim, c.extent});
  std::vector<float> turned(stored.size());
  for (int64_t i = 0; i < c.extent; ++i) {
    for (int64_t d = 0; d < c.relative_dim; ++d) {
      turned[static_cast<size_t>(i * c.relative_dim + d)] =
          stored[static_cast<size_t>(d * c.extent + (c.extent - 1 - i))];
    }
  }
  return Linear(loader, TensorView::contiguous(turned.data(), DType::kFloat32, Shape{c.extent, c.relative_dim}), {});
}

}  // namespace

RelativeAttention::RelativeAttention(const RelativeAttentionConfig& config, WeightLoader loader,
                                     const ResidualConvs& convs, size_t key_conv, size_t value_conv)
    : SoftmaxAttention(softmax_config(config), loader),
      config_(checked(config, loader)),
      convs_(convs),
      key_conv_(key_conv),
      value_conv_(value_conv),
      q_proj_(loader, "q_proj", config_.hidden_size, q_width(), false),
      k_proj_(loader, "k_proj", config_.hidden_size, kv_width(), false),
      v_proj_(loader, "v_proj", config_.hidden_size, kv_width(), false),
      r_proj_(loader, "r_proj", config_.hidden_size, num_heads() * config_.relative_dim, false),
      out_proj_(loader, "o_proj", q_width(), config_.hidden_size, false),
      q_norm_(loader, "q_norm", head_dim(), config_.norm_eps),
      k_norm_(loader, "k_norm", head_dim(), config_.norm_eps),
      profiles_(take_profiles(loader, config_)) {}

void RelativeAttention::grow(const ForwardBatch& batch, float* q, float* relative) const {
  if (!config_.log_floor) return;
  const int64_t relative_width = num_heads() * config_.relative_dim;
  for (int64_t t = 0; t < batch.num_tokens(); ++t) {
    const double position = static_cast<double>(batch.positions[static_cast<size_t>(t)]);
    const double turns = std::max(1.0, (position + 1.0) / *config_.log_floor);
    const auto factor = static_cast<float>(1.0 + config_.log_alpha * std::log(turns));
    for (int64_t d = t * q_width(); d < (t + 1) * q_width(); ++d) q[d] *= factor;
    for (int64_t d = t * relative_width; d < (t + 1) * relative_width; ++d) relative[d] *= factor;
  }
}

void RelativeAttention::forward(const ForwardBatch& batch, const float* x, float* y) {
  WorkspaceScope scope(*batch.workspace);
  const int64_t tokens = batch.num_tokens();
  float* q = batch.workspace->take<float>(tokens * q_width());
  float* raw = batch.workspace->take<float>(tokens * kv_width());
  float* k = batch.workspace->take<float>(tokens * kv_width());
  float* v = batch.workspace->take<float>(tokens * kv_width());
  float* relative = batch.workspace->take<float>(tokens * num_heads() * config_.relative_dim);
  float* bias = batch.workspace->take<float>(tokens * num_heads() * config_.extent);
  float* out = batch.workspace->take<float>(tokens * q_width());
  q_proj_.forward(batch, x, tokens, q);
  q_norm_.forward(batch, q, tokens * num_heads(), q);
  k_proj_.forward(batch, x, tokens, raw);
  convs_.forward(batch, key_conv_, raw, k);
  k_norm_.forward(batch, k, tokens * num_kv_heads(), k);
  v_proj_.forward(batch, x, tokens, raw);
  convs_.forward(batch, value_conv_, raw, v);
  r_proj_.forward(batch, x, tokens, relative);
  grow(batch, q, relative);
  profiles_.forward(batch, relative, tokens * num_heads(), bias);
  AttendOptions options;
  options.bias = bias;
  options.bias_extent = config_.extent;
  attend(batch, q, k, v, out, options);
  out_proj_.forward(batch, out, tokens, y);
}

}  // namespace coluber
