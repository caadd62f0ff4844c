// SPDX-License-Identifier: Apache-2.0
#include "layers/conv_attention.h"

#include "cache/state_shape.h"
#include "kernels/elementwise/scale.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

ConvAttentionConfig checked(const ConvAttentionConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("heads", config.attention.num_heads);
  checks.expect_positive("key-value heads", config.attention.num_kv_heads);
  checks.expect_positive("head dim", config.attention.head_dim);
  if (config.conv_kernel != 0) checks.expect_between("convolution width", config.conv_kernel, 2, kMaxConvWidth);
  checks.finish("attention", loader);
  return config;
}

}  // namespace

CausalConv::CausalConv(int64_t channels, int64_t width, WeightLoader loader)
    : MambaBase(layer_name_of(loader) + ".conv1d"),
      channels_(channels),
      width_(width),
      engine_config_(loader.config()),
      weight_(take_conv_weight(loader, "conv1d.weight", channels, width)),
      bias_(loader.take_array("conv1d.bias", Shape{channels})) {
  loader.config().register_layer(*this);
}

std::vector<Shape> CausalConv::get_state_shape() const {
  return short_conv_state_shape(engine_config_.parallel.tensor_parallel_size, channels_, width_,
                                engine_config_.speculative.num_speculative_tokens);
}

std::vector<DType> CausalConv::get_state_dtype() const { return {conv_state_dtype(engine_config_)}; }

void CausalConv::forward(const ForwardBatch& batch, const float* x, float* y) const {
  const int64_t tokens = batch.num_tokens();
  const auto& metadata = batch.metadata<ShortConvAttentionMetadata>(*this);
  check_step(*this, {(width_ - 1) * channels_}, metadata, tokens);
  const int64_t computed = metadata.num_decode_tokens + metadata.num_prefill_tokens;
  zero_padding(batch, computed, y, channels_);
  CausalConv1dArgs args;
  args.x = x;
  args.weight = weight_.data();
  args.bias = bias_.data();
  args.y = y;
  args.channels = args.x_stride = args.y_stride = channels_;
  args.width = width_;
  convolve_rows(args, metadata, kv_cache()[0], batch);
}

ConvAttention::ConvAttention(const ConvAttentionConfig& config, WeightLoader loader)
    : config_(checked(config, loader)),
      in_proj_(loader, "in_proj", config_.hidden_size, config_.qkv_width(), config_.qkv_bias),
      out_proj_(loader, "out_proj", config_.q_width(), config_.hidden_size, config_.out_bias) {
  if (config_.conv_kernel > 0) conv_ = std::make_unique<CausalConv>(config_.qkv_width(), config_.conv_kernel, loader);
  attention_ = std::make_unique<ProjectedAttention>(config_.attention, loader);
}

void ConvAttention::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), width = config_.qkv_width();
  const int64_t q_width = config_.q_width(), kv_width = config_.kv_width();
  WorkspaceScope scope(*batch.workspace);
  float* qkv = batch.workspace->take<float>(tokens * width);
  in_proj_.forward(batch, x, tokens, qkv);
  if (conv_) {
    float* convolved = batch.workspace->take<float>(tokens * width);
    conv_->forward(batch, qkv, convolved);
    qkv = convolved;
  }
  float* q = batch.workspace->take<float>(tokens * q_width);
  float* k = batch.workspace->take<float>(tokens * kv_width);
  float* v = batch.workspace->take<float>(tokens * kv_width);
  scale()(ScaleArgs{qkv, width, q, q_width, tokens, q_width}, batch);
  scale()(ScaleArgs{qkv + q_width, width, k, kv_width, tokens, kv_width}, batch);
  scale()(ScaleArgs{qkv + q_width + kv_width, width, v, kv_width, tokens, kv_width}, batch);
  float* out = batch.workspace->take<float>(tokens * q_width);
  attention_->forward(batch, q, k, v, out);
  out_proj_.forward(batch, out, tokens, y, accumulate);
}

}  // namespace coluber
