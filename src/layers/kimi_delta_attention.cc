// SPDX-License-Identifier: Apache-2.0
#include "layers/kimi_delta_attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/norm/norm.h"
#include "layers/delta_step.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

KimiDeltaAttentionConfig checked(KimiDeltaAttentionConfig config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("heads", config.num_heads);
  checks.expect_between("head dim", config.head_dim, 1, kMaxDeltaKeyDim);
  checks.expect_between("convolution width", config.conv_kernel, 2, kMaxConvWidth);
  checks.expect(!config.gate_lower_bound || *config.gate_lower_bound < 0,
                fmt::format("lower bound of the decays' logarithm: expected below 0, found {}",
                            config.gate_lower_bound.value_or(0)));
  checks.finish("Kimi delta attention", loader);
  if (config.a_log_shape.rank() == 0) config.a_log_shape = Shape{config.num_heads};
  return config;
}

// The convolutions of q, k and v, side by side: [W, 3 * width].
std::vector<float> take_conv_weights(WeightLoader& loader, int64_t width, int64_t taps) {
  std::vector<std::vector<float>> thirds;  // first of all: the loader refuses what no checkpoint holds
  for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"})
    thirds.push_back(read_conv_weight(loader, name, width, taps));
  std::vector<float> weights(static_cast<size_t>(taps * 3 * width));
  for (int64_t third = 0; third < 3; ++third)
    for (int64_t j = 0; j < taps; ++j)
      std::copy_n(thirds[static_cast<size_t>(third)].begin() + j * width, width,
                  weights.begin() + (j * 3 + third) * width);
  return weights;
}

}  // namespace

KimiDeltaAttention::KimiDeltaAttention(const KimiDeltaAttentionConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      q_proj_(loader, "q_proj", config_.hidden_size, config_.width(), false),
      k_proj_(loader, "k_proj", config_.hidden_size, config_.width(), false),
      v_proj_(loader, "v_proj", config_.hidden_size, config_.width(), false),
      f_a_proj_(loader, "f_a_proj", config_.hidden_size, config_.head_dim, false),
      f_b_proj_(loader, "f_b_proj", config_.head_dim, config_.width(), false),
      b_proj_(loader, "b_proj", config_.hidden_size, config_.num_heads, false),
      g_a_proj_(loader, "g_a_proj", config_.hidden_size, config_.head_dim, false),
      g_b_proj_(loader, "g_b_proj", config_.head_dim, config_.width(), false),
      out_proj_(loader, "o_proj", config_.width(), config_.hidden_size, false),
      out_norm_(loader, "o_norm", config_.head_dim, config_.norm_eps),
      conv_weight_(loader.place(take_conv_weights(loader, config_.width(), config_.conv_kernel))),
      dt_bias_(loader.take_array("dt_bias", Shape{config_.width()})),
      rate_(take_rates(loader, config_.a_log_shape)) {
  loader.config().register_layer(*this);
}

std::vector<Shape> KimiDeltaAttention::get_state_shape() const {
  KimiDeltaAttentionStateSizes sizes;
  sizes.num_heads = config_.num_heads;
  sizes.head_dim = config_.head_dim;
  sizes.conv_kernel = config_.conv_kernel;
  return with_state_scales(kda_state_shape(engine_config_.parallel.tensor_parallel_size, sizes,
                                           engine_config_.speculative.num_speculative_tokens),
                           get_state_dtype());
}

std::vector<DType> KimiDeltaAttention::get_state_dtype() const {
  return with_state_scales({conv_state_dtype(engine_config_), kda_recurrent_state_dtype(engine_config_)});
}

std::vector<StateLaneOrder> KimiDeltaAttention::get_state_lane_order() const {
  return {StateLaneOrder::kContract, StateLaneOrder::kHeadBlock16};
}

void KimiDeltaAttention::project_qkv(const ForwardBatch& batch, const float* x, float* qkv) const {
  const int64_t width = config_.width();
  int64_t third = 0;
  for (const Linear* projection : {&q_proj_, &k_proj_, &v_proj_}) {
    projection->forward(batch, x, config_.hidden_size, batch.num_tokens(), qkv + third * width, 3 * width);
    ++third;
  }
}

void KimiDeltaAttention::project_low_rank(const ForwardBatch& batch, const Linear& down, const Linear& up,
                                          const float* x, float* out) const {
  WorkspaceScope scope(*batch.workspace);
  float* narrow = batch.workspace->take<float>(batch.num_tokens() * config_.head_dim);
  down.forward(batch, x, batch.num_tokens(), narrow);
  up.forward(batch, narrow, batch.num_tokens(), out);
}

void KimiDeltaAttention::norm_and_gate(const ForwardBatch& batch, const float* gate, float* y) const {
  GatedRmsNormArgs args;
  args.norm.x = args.norm.y = y;
  args.norm.x_stride = args.norm.y_stride = args.norm.cols = args.z_stride = config_.head_dim;
  args.norm.rows = batch.num_tokens() * config_.num_heads;
  args.norm.weight = out_norm_.weight();
  args.norm.eps = out_norm_.eps();
  args.z = gate;
  args.gate = Gate::kSigmoid;
  rms_norm_then_gate()(args, batch);
}

void KimiDeltaAttention::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), width = config_.width();
  const DeltaStep step(*this, batch, (config_.conv_kernel - 1) * 3 * width, width * config_.head_dim);
  WorkspaceScope scope(*batch.workspace);
  float* projected = batch.workspace->take<float>(tokens * 3 * width);
  float* qkv = batch.workspace->take<float>(tokens * 3 * width);
  float* f = batch.workspace->take<float>(tokens * width);
  float* beta = batch.workspace->take<float>(tokens * config_.num_heads);
  float* attended = batch.workspace->take<float>(tokens * width);
  project_qkv(batch, x, projected);
  CausalConv1dArgs conv;
  conv.x = projected;
  conv.y = qkv;
  conv.weight = conv_weight_.data();
  conv.silu = true;
  conv.x_stride = conv.y_stride = conv.channels = 3 * width;
  conv.width = config_.conv_kernel;
  step.convolve(conv);
  project_low_rank(batch, f_a_proj_, f_b_proj_, x, f);
  b_proj_.forward(batch, x, tokens, beta);
  DeltaRuleArgs rule;
  rule.q = qkv;
  rule.k = qkv + width;
  rule.v = qkv + 2 * width;
  rule.q_stride = rule.k_stride = rule.v_stride = 3 * width;
  rule.gate = f;
  rule.gate_stride = width;
  rule.gate_per_channel = true;
  rule.gate_bias = dt_bias_.data();
  rule.gate_rate = rate_.data();
  rule.gate_lower_bound = static_cast<float>(config_.gate_lower_bound.value_or(0));
  rule.beta = beta;
  rule.beta_stride = rule.num_k_heads = rule.num_v_heads = config_.num_heads;
  rule.norm_eps = 1e-6f;
  rule.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  rule.y = attended;
  rule.y_stride = width;
  rule.key_dim = rule.value_dim = config_.head_dim;
  step.attend(rule);
  step.zero_padding(attended, width);
  float* gate = f;  // its decays are spent
  project_low_rank(batch, g_a_proj_, g_b_proj_, x, gate);
  norm_and_gate(batch, gate, attended);
  out_proj_.forward(batch, attended, tokens, y, accumulate);
}

}  // namespace coluber
