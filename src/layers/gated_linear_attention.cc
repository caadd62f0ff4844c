// SPDX-License-Identifier: Apache-2.0
#include "layers/gated_linear_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "cache/state_shape.h"
#include "kernels/linear/decay_gate.h"
#include "kernels/linear/silu.h"
#include "kernels/norm/norm.h"
#include "layers/recurrent_layer.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

GatedLinearAttentionConfig checked(GatedLinearAttentionConfig config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("heads", config.num_heads);
  checks.expect(config.num_kv_heads > 0 && config.num_heads % std::max<int64_t>(config.num_kv_heads, 1) == 0,
                fmt::format("key-value heads: expected a divisor of the {} heads, found {}", config.num_heads,
                            config.num_kv_heads));
  checks.expect_between("key head dim", config.head_k_dim, 1, kMaxLinearKeyDim);
  checks.expect_positive("value head dim", config.head_v_dim);
  checks.expect(config.conv_size == 0 || (config.conv_size >= 2 && config.conv_size <= kMaxConvWidth),
                fmt::format("convolution width: expected 2 to {}, found {}", kMaxConvWidth, config.conv_size));
  checks.expect(config.norm_eps > 0.0, fmt::format("norm epsilon: expected above 0, found {}", config.norm_eps));
  if (config.decay == LinearDecay::kLogSigmoid) {
    checks.expect_positive("gate rank", config.gate_low_rank_dim);
    checks.expect(config.gate_logit_normalizer > 0.0,
                  fmt::format("gate normalizer: expected above 0, found {}", config.gate_logit_normalizer));
  }
  checks.expect(config.decay != LinearDecay::kBounded || config.lower_bound.empty() ||
                    static_cast<int64_t>(config.lower_bound.size()) == config.num_kv_heads * config.head_k_dim,
                fmt::format("lower bound: expected {} values, found {}", config.num_kv_heads * config.head_k_dim,
                            config.lower_bound.size()));
  checks.finish("gated linear attention", loader);
  return config;
}

}  // namespace

GatedLinearAttention::GatedLinearAttention(const GatedLinearAttentionConfig& config, WeightLoader loader)
    : MambaBase(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      rotation_(config_.rope, config_.head_k_dim, loader),
      o_proj_(loader, "o_proj", config_.num_heads * config_.head_v_dim, config_.hidden_size, false) {
  const int64_t keys = config_.num_kv_heads * config_.head_k_dim, values = config_.num_heads * config_.head_v_dim;
  inputs_.push_back(take_input(loader, config_.q, config_.num_heads * config_.head_k_dim));
  inputs_.push_back(take_input(loader, config_.k, keys));
  inputs_.push_back(take_input(loader, config_.v, config_.num_kv_heads * config_.head_v_dim));
  if (config_.decay == LinearDecay::kLogSigmoid) {
    gk_down_.emplace(loader, "gk_proj.0", config_.hidden_size, config_.gate_low_rank_dim, false);
    gk_up_.emplace(loader, "gk_proj.1", config_.gate_low_rank_dim, keys, true);
  }
  if (config_.decay == LinearDecay::kConstant) {
    std::vector<float> slopes;
    for (int64_t h = 0; h < config_.num_heads; ++h)
      slopes.push_back(static_cast<float>(-std::log1p(-std::exp2(-5.0 - static_cast<double>(h)))));
    slopes_ = loader.place(std::move(slopes));
  }
  lower_bound_ = loader.place(config_.lower_bound);
  if (config_.output_gate) g_proj_.emplace(loader, "g_proj", config_.hidden_size, values, false);
  if (config_.norm_weight)
    norm_weight_ =
        loader.take_array(config_.norm + ".weight", Shape{config_.norm_all_heads ? values : config_.head_v_dim});
  loader.config().register_layer(*this);
}

GatedLinearAttention::Input GatedLinearAttention::take_input(WeightLoader& loader, const std::string& name,
                                                             int64_t width) const {
  Input input{name, Linear(loader, name + "_proj", config_.hidden_size, width, false), {}};
  if (config_.conv_size > 0)
    input.conv_weight = take_conv_weight(loader, name + "_conv1d.weight", width, config_.conv_size);
  return input;
}

std::vector<Shape> GatedLinearAttention::get_state_shape() const {
  const int64_t ranks = engine_config_.parallel.tensor_parallel_size;
  expect_even_shares(*this, "linear attention heads", config_.num_heads, ranks);
  std::vector<Shape> shapes;
  for (const Input& input : inputs_)
    if (config_.conv_size > 0)
      shapes.push_back(short_conv_state_shape(ranks, input.proj.out_features(), config_.conv_size).front());
  shapes.push_back(
      linear_attention_state_shape(ranks, config_.num_heads, config_.head_k_dim, config_.head_v_dim).front());
  return with_state_scales(std::move(shapes), get_state_dtype());
}

std::vector<DType> GatedLinearAttention::get_state_dtype() const {
  std::vector<DType> dtypes(config_.conv_size > 0 ? inputs_.size() : 0, conv_state_dtype(engine_config_));
  dtypes.push_back(linear_attention_state_dtype(engine_config_));
  return with_state_scales(std::move(dtypes));
}

std::vector<std::string> GatedLinearAttention::get_state_names() const {
  std::vector<std::string> names;
  for (const Input& input : inputs_)
    if (config_.conv_size > 0) names.push_back("conv." + input.name);
  names.push_back("recurrent");
  return names;
}

LinearAttentionStep GatedLinearAttention::begin(const ForwardBatch& batch) const {
  if (config_.conv_size == 0) return LinearAttentionStep(*this, batch, {state_elements()});
  const auto window = [&](size_t input) { return (config_.conv_size - 1) * inputs_[input].proj.out_features(); };
  return LinearAttentionStep(*this, batch, {window(0), window(1), window(2), state_elements()});
}

float* GatedLinearAttention::project(const ForwardBatch& batch, const LinearAttentionStep& step, size_t input,
                                     const float* x) const {
  const Input& in = inputs_[input];
  const int64_t tokens = batch.num_tokens(), width = in.proj.out_features();
  float* projected = batch.workspace->take<float>(tokens * width);
  in.proj.forward(batch, x, tokens, projected);
  if (config_.conv_size == 0) return projected;
  CausalConv1dArgs args;
  args.x = projected;
  args.y = batch.workspace->take<float>(tokens * width);
  args.x_stride = args.y_stride = args.channels = width;
  args.weight = in.conv_weight.data();
  args.width = config_.conv_size;
  args.silu = config_.conv_silu;
  step.convolve(args, input);
  return args.y;
}

void GatedLinearAttention::map_features(const ForwardBatch& batch, float* q, float* k) const {
  if (!config_.feature_map) return;
  ActivateArgs args;
  args.activation = *config_.feature_map;
  args.rows = batch.num_tokens();
  for (auto [values, heads] : {std::pair(q, config_.num_heads), std::pair(k, config_.num_kv_heads)}) {
    args.gate = args.out = values;
    args.gate_stride = args.out_stride = args.cols = heads * config_.head_k_dim;
    activate()(args, batch);
  }
}

void GatedLinearAttention::rotate(const ForwardBatch& batch, float* q, float* k) const {
  const int64_t dim = config_.head_k_dim;
  rotation_.forward(batch, {q, config_.num_heads * dim, config_.num_heads},
                    {k, config_.num_kv_heads * dim, config_.num_kv_heads}, dim);
}

void GatedLinearAttention::decay(const ForwardBatch& batch, const float* x, float* k,
                                 GatedLinearAttentionArgs& args) const {
  const int64_t tokens = batch.num_tokens(), channels = config_.num_kv_heads * config_.head_k_dim;
  if (config_.decay == LinearDecay::kConstant) {
    args.slopes = slopes_.data();
    return;
  }
  float* a = batch.workspace->take<float>(tokens * channels);
  args.decay = a;
  args.decay_stride = channels;
  if (config_.decay == LinearDecay::kBounded) {
    BoundedDecayArgs gate;
    gate.x = k;
    gate.lower = lower_bound_.data();
    gate.a = a;
    gate.tokens = tokens;
    gate.channels = channels;
    gate.key = k;
    bounded_decay()(gate, batch);
    return;
  }
  float* low = batch.workspace->take<float>(tokens * config_.gate_low_rank_dim);
  gk_down_->forward(batch, x, tokens, low);
  gk_up_->forward(batch, low, tokens, a);
  LogSigmoidDecayArgs gate;
  gate.x = gate.a = a;
  gate.count = tokens * channels;
  gate.normalizer = static_cast<float>(config_.gate_logit_normalizer);
  if (config_.clamp_min) gate.clamp_min = static_cast<float>(*config_.clamp_min);
  log_sigmoid_decay()(gate, batch);
}

void GatedLinearAttention::finish(const ForwardBatch& batch, const float* x, float* out) const {
  const int64_t tokens = batch.num_tokens(), width = config_.num_heads * config_.head_v_dim;
  GatedRmsNormArgs args;
  args.norm.cols = config_.norm_all_heads ? width : config_.head_v_dim;
  args.norm.x = args.norm.y = out;
  args.norm.x_stride = args.norm.y_stride = args.z_stride = args.norm.cols;
  args.norm.rows = tokens * width / args.norm.cols;
  args.norm.weight = norm_weight_.data();
  args.norm.eps = static_cast<float>(config_.norm_eps);
  if (!g_proj_) {
    rms_norm()(args.norm, batch);
    return;
  }
  float* gate = batch.workspace->take<float>(tokens * width);
  g_proj_->forward(batch, x, tokens, gate);
  args.z = gate;
  args.gate = Gate::kSilu;
  rms_norm_then_gate()(args, batch);
}

void GatedLinearAttention::forward(const ForwardBatch& batch, const float* x, float* y, bool accumulate) {
  const int64_t tokens = batch.num_tokens(), width = config_.num_heads * config_.head_v_dim;
  WorkspaceScope scope(*batch.workspace);
  const LinearAttentionStep step = begin(batch);
  float* q = project(batch, step, 0, x);
  float* k = project(batch, step, 1, x);
  float* v = project(batch, step, 2, x);
  if (config_.q_silu) silu()(SiluArgs{q, q, tokens * config_.num_heads * config_.head_k_dim}, batch);
  map_features(batch, q, k);
  rotate(batch, q, k);
  float* out = batch.workspace->take<float>(tokens * width);
  GatedLinearAttentionArgs args;
  args.num_heads = config_.num_heads;
  args.group = config_.num_heads / config_.num_kv_heads;
  args.key_dim = args.q_head_stride = args.k_head_stride = config_.head_k_dim;
  args.value_dim = args.v_head_stride = config_.head_v_dim;
  args.q = q;
  args.q_stride = config_.num_heads * config_.head_k_dim;
  args.k = k;
  args.k_stride = config_.num_kv_heads * config_.head_k_dim;
  args.v = v;
  args.v_stride = config_.num_kv_heads * config_.head_v_dim;
  args.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_k_dim));
  args.o = out;
  args.o_stride = width;
  decay(batch, x, k, args);
  step.attend(args, inputs_.size() * (config_.conv_size > 0 ? 1 : 0));
  finish(batch, x, out);
  o_proj_.forward(batch, out, tokens, y, accumulate);
}

}  // namespace coluber
