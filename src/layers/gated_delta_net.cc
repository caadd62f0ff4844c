// SPDX-License-Identifier: Apache-2.0
#include "layers/gated_delta_net.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/moe/activation.h"
#include "kernels/norm/sum_norm.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

GatedDeltaNetConfig checked(const GatedDeltaNetConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("value heads", config.num_v_heads);
  checks.expect(config.num_k_heads > 0 && config.num_v_heads % std::max<int64_t>(config.num_k_heads, 1) == 0,
                fmt::format("key heads: expected a divisor of the {} value heads, found {}", config.num_v_heads,
                            config.num_k_heads));
  checks.expect_between("key head dim", config.head_k_dim, 1, kMaxDeltaKeyDim);
  checks.expect_positive("value head dim", config.head_v_dim);
  checks.expect_between("convolution width", config.conv_kernel, 2, kMaxConvWidth);
  checks.expect(config.norm_eps > 0.0, fmt::format("norm epsilon: expected above 0, found {}", config.norm_eps));
  checks.finish("gated delta net", loader);
  return config;
}

// The convolutions of q, k and v as one, [W, C]. Stored as one, or as three whose channels follow each other; what
// was one at first has been stored in equal thirds too, so that the widths of the three say nothing.
std::vector<float> take_conv_weights(WeightLoader& loader, const GatedDeltaNetConfig& config) {
  const int64_t channels = config.conv_channels(), taps = config.conv_kernel;
  if (!config.stored_convs) {  // one that looks at the token alone
    std::vector<float> weights(static_cast<size_t>(taps * channels), 0.0f);
    std::fill(weights.end() - channels, weights.end(), 1.0f);
    return weights;
  }
  if (config.projections != DeltaProjections::kSeparate || loader.has("conv1d.weight"))
    return read_conv_weight(loader, "conv1d.weight", channels, taps);
  const char* const names[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
  int64_t widths[] = {config.key_width(), config.key_width(), config.value_width()}, stored[3] = {}, total = 0;
  for (int i = 0; i < 3; ++i) {
    const std::optional<Shape> shape = loader.shape_of(names[i]);
    stored[i] = shape && shape->rank() == 3 ? (*shape)[0] : -1;
    total += stored[i];
  }
  if (total == channels && *std::min_element(stored, stored + 3) > 0) std::copy_n(stored, 3, widths);
  std::vector<float> parts[3];  // first of all: the loader refuses what no checkpoint holds
  for (int i = 0; i < 3; ++i) parts[i] = read_conv_weight(loader, names[i], widths[i], taps);
  std::vector<float> weights(static_cast<size_t>(taps * channels));
  for (int64_t i = 0, first = 0; i < 3; first += widths[i++]) {
    for (int64_t j = 0; j < taps; ++j)
      std::copy_n(parts[i].begin() + j * widths[i], widths[i], weights.begin() + j * channels + first);
  }
  return weights;
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const GatedDeltaNetConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)), config_(checked(config, loader)), engine_config_(loader.config()) {
  take_projections(loader);
  conv_weight_ = loader.place(take_conv_weights(loader, config_));
  if (config_.decay) {
    rate_ = take_rates(loader, Shape{config_.num_v_heads});
    dt_bias_ = loader.take_array("dt_bias", Shape{config_.num_v_heads});
  }
  norm_weight_ = loader.take_array(config_.norm + ".weight", Shape{config_.head_v_dim});
  out_proj_.emplace(loader, config_.out_proj, config_.value_width(), config_.hidden_size, false);
  loader.config().register_layer(*this);
}

void GatedDeltaNet::take_projections(WeightLoader& loader) {
  const int64_t in = config_.hidden_size, keys = config_.key_width(), values = config_.value_width();
  const int64_t heads = config_.num_v_heads;
  if (config_.projections == DeltaProjections::kByKeyHead) {
    take_by_key_head(loader);
    return;
  }
  const bool separate = config_.projections == DeltaProjections::kSeparate;
  if (separate) {
    qkv_.emplace_back(loader, "q_proj", in, keys, false);
    qkv_.emplace_back(loader, "k_proj", in, keys, false);
    qkv_.emplace_back(loader, "v_proj", in, values, false);
  } else {
    qkv_.emplace_back(loader, "in_proj_qkv", in, config_.conv_channels(), false);
  }
  if (config_.output_gate) z_.emplace(loader, separate ? "g_proj" : "in_proj_z", in, values, false);
  if (config_.beta) b_.emplace(loader, separate ? "b_proj" : "in_proj_b", in, heads, false);
  if (config_.decay) a_.emplace(loader, separate ? "a_proj" : "in_proj_a", in, heads, false);
}

std::vector<Shape> GatedDeltaNet::get_state_shape() const {
  GatedDeltaNetStateSizes sizes;
  sizes.num_k_heads = config_.num_k_heads;
  sizes.num_v_heads = config_.num_v_heads;
  sizes.head_k_dim = config_.head_k_dim;
  sizes.head_v_dim = config_.head_v_dim;
  sizes.conv_kernel = config_.conv_kernel;
  const int64_t ranks = engine_config_.parallel.tensor_parallel_size;
  expect_even_shares(*this, "key heads", config_.num_k_heads, ranks);
  return with_state_scales(gated_delta_net_state_shape(ranks, sizes, engine_config_.speculative.num_speculative_tokens),
                           get_state_dtype());
}

std::vector<DType> GatedDeltaNet::get_state_dtype() const {
  return with_state_scales({conv_state_dtype(engine_config_), recurrent_state_dtype(engine_config_)});
}

std::vector<StateLaneOrder> GatedDeltaNet::get_state_lane_order() const {
  return {StateLaneOrder::kContract, StateLaneOrder::kHeadBlock16};
}

// Of each key head: its query and key, then the values of its value heads and their gates; b, then a, of those heads.
void GatedDeltaNet::take_by_key_head(WeightLoader& loader) {
  const int64_t in = config_.hidden_size, keys = config_.head_k_dim, heads = config_.num_k_heads;
  const int64_t shared = config_.num_v_heads / heads, values = shared * config_.head_v_dim;
  const int64_t wide = 2 * (keys + values);
  const TensorView qkvz = loader.take("in_proj_qkvz.weight", Shape{heads * wide, in});
  qkv_.push_back(gather_rows(loader, qkvz, {{0, keys, wide}, {keys, keys, wide}, {2 * keys, values, wide}}, heads));
  z_.emplace(gather_rows(loader, qkvz, {{2 * keys + values, values, wide}}, heads));
  const TensorView ba = loader.take("in_proj_ba.weight", Shape{heads * 2 * shared, in});
  b_.emplace(gather_rows(loader, ba, {{0, shared, 2 * shared}}, heads));
  a_.emplace(gather_rows(loader, ba, {{shared, shared, 2 * shared}}, heads));
}

GatedDeltaNet::Projected GatedDeltaNet::project(const ForwardBatch& batch, const float* x) const {
  const int64_t tokens = batch.num_tokens(), channels = config_.conv_channels(), heads = config_.num_v_heads;
  Projected out;
  out.qkv = batch.workspace->take<float>(tokens * channels);
  if (config_.output_gate) out.z = batch.workspace->take<float>(tokens * config_.value_width());
  if (config_.decay) out.a = batch.workspace->take<float>(tokens * heads);
  if (config_.beta) out.b = batch.workspace->take<float>(tokens * heads);
  int64_t first = 0;
  for (const Linear& projection : qkv_) {
    projection.forward(batch, x, config_.hidden_size, tokens, out.qkv + first, channels);
    first += projection.out_features();
  }
  if (z_) z_->forward(batch, x, tokens, out.z);
  if (a_) a_->forward(batch, x, tokens, out.a);
  if (b_) b_->forward(batch, x, tokens, out.b);
  return out;
}

void GatedDeltaNet::convolve(const ForwardBatch& batch, const DeltaStep& step, const float* in, float* out) const {
  const int64_t channels = config_.conv_channels(), keys = 2 * config_.key_width();
  CausalConv1dArgs args;
  args.x = in;
  args.y = out;
  args.weight = conv_weight_.data();
  args.silu = config_.key_activation == DeltaKeyActivation::kSilu;
  args.x_stride = args.y_stride = args.channels = channels;
  args.width = config_.conv_kernel;
  step.convolve(args);
  step.zero_padding(out, channels);
  if (args.silu) return;
  ActivateArgs activation;
  activation.rows = batch.num_tokens();
  activation.gate_stride = activation.out_stride = channels;
  activation.activation = Activation::kSilu;
  activation.gate = activation.out = out + keys;
  activation.cols = config_.value_width();
  activate()(activation, batch);
  if (config_.key_activation == DeltaKeyActivation::kNone) return;
  activation.activation =
      config_.key_activation == DeltaKeyActivation::kRelu ? Activation::kRelu : Activation::kEluPlusOne;
  activation.gate = activation.out = out;
  activation.cols = keys;
  activate()(activation, batch);
}

void GatedDeltaNet::norm_keys_by_sum(const ForwardBatch& batch, float* qkv) const {
  SumNormArgs args;
  args.x = qkv;
  args.stride = config_.conv_channels();
  args.rows = batch.num_tokens();
  args.groups = 2 * config_.num_k_heads;
  args.cols = config_.head_k_dim;
  args.floor = 1e-6f;  // all of a head may be 0 behind a relu
  sum_norm()(args, batch);
}

void GatedDeltaNet::norm_and_gate(const ForwardBatch& batch, const float* z, float* o) const {
  GatedRmsNormArgs args;
  args.norm.x = args.norm.y = o;
  args.norm.x_stride = args.norm.y_stride = args.norm.cols = args.z_stride = config_.head_v_dim;
  args.norm.rows = batch.num_tokens() * config_.num_v_heads;
  args.norm.weight = norm_weight_.data();
  args.norm.eps = static_cast<float>(config_.norm_eps);
  if (z == nullptr) {
    rms_norm()(args.norm, batch);
    return;
  }
  args.z = z;
  args.gate = config_.output_gate_function;
  rms_norm_then_gate()(args, batch);
}

void GatedDeltaNet::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), channels = config_.conv_channels(), values = config_.value_width();
  const DeltaStep step(*this, batch, (config_.conv_kernel - 1) * channels, values * config_.head_k_dim);
  WorkspaceScope scope(*batch.workspace);
  const Projected projected = project(batch, x);
  float* qkv = batch.workspace->take<float>(tokens * channels);
  float* o = batch.workspace->take<float>(tokens * values);
  convolve(batch, step, projected.qkv, qkv);
  if (config_.key_norm == DeltaKeyNorm::kSum) norm_keys_by_sum(batch, qkv);
  DeltaRuleArgs rule;
  rule.q = qkv;
  rule.k = qkv + config_.key_width();
  rule.v = rule.k + config_.key_width();
  rule.q_stride = rule.k_stride = rule.v_stride = channels;
  rule.gate = projected.a;
  rule.gate_bias = dt_bias_.data();
  rule.gate_rate = rate_.data();
  rule.beta = projected.b;
  rule.gate_stride = rule.beta_stride = config_.num_v_heads;
  rule.beta_scale = config_.allow_neg_eigval ? 2.0f : 1.0f;
  rule.norm_eps = config_.key_norm == DeltaKeyNorm::kL2 ? 1e-6f : 0.0f;
  rule.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_k_dim));
  rule.y = o;
  rule.y_stride = values;
  rule.num_k_heads = config_.num_k_heads;
  rule.num_v_heads = config_.num_v_heads;
  rule.key_dim = config_.head_k_dim;
  rule.value_dim = config_.head_v_dim;
  step.attend(rule);
  step.zero_padding(o, values);
  norm_and_gate(batch, projected.z, o);
  out_proj_->forward(batch, o, tokens, y, accumulate);
}

}  // namespace coluber
