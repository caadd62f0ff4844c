// SPDX-License-Identifier: Apache-2.0
#include "layers/rwkv6_time_mix.h"

#include <cmath>

#include "cache/state_shape.h"
#include "kernels/wkv/wkv6.h"
#include "layers/recurrent_step.h"
#include "layers/rwkv_channel_mix.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

const RegisterRecurrentBackend kBackend("wkv6");

constexpr int64_t kMixes = 5;  // w, k, v, r, g

Rwkv6TimeMixConfig checked(const Rwkv6TimeMixConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  expect_heads(checks, config.hidden_size, config.num_heads);
  checks.finish("RWKV time mix", loader);
  return config;
}

// One value a channel. Before 5.2 one a head is stored, which all its channels share.
std::vector<float> take_by_channel(WeightLoader& loader, std::string_view name, const Rwkv6TimeMixConfig& config) {
  const std::optional<Shape> stored = loader.shape_of(name);
  if (config.data_dependent || !stored || stored->count() != config.num_heads)
    return take_vector(loader, name, config.hidden_size);
  std::vector<float> values;
  for (const float value : take_vector(loader, name, config.num_heads))
    values.insert(values.end(), static_cast<size_t>(config.hidden_size / config.num_heads), value);
  return values;
}

// As stored, or before 5.2 its logarithm under another name.
std::vector<float> take_bonus(WeightLoader& loader, const Rwkv6TimeMixConfig& config) {
  if (loader.has("time_faaaa") || !loader.has("time_first")) return take_by_channel(loader, "time_faaaa", config);
  std::vector<float> bonus = take_by_channel(loader, "time_first", config);
  for (float& value : bonus) value = std::exp(value);
  return bonus;
}

}  // namespace

struct Rwkv6TimeMix::Mixed {
  float* of[kMixes];  // [T, D] each, in the order w, k, v, r, g; RWKV-5 has no w
};

Rwkv6TimeMix::Rwkv6TimeMix(const Rwkv6TimeMixConfig& config, WeightLoader loader)
    : RwkvMixer(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      mix_k_(take_mix(loader, config_.mix_k, config_.hidden_size, !config_.data_dependent)),
      mix_v_(take_mix(loader, config_.mix_v, config_.hidden_size, !config_.data_dependent)),
      mix_r_(take_mix(loader, config_.mix_r, config_.hidden_size, !config_.data_dependent)),
      decay_(take_by_channel(loader, "time_decay", config_)),
      first_(take_bonus(loader, config_)),
      receptance_(loader, "receptance", config_.hidden_size, config_.hidden_size, false),
      key_(loader, "key", config_.hidden_size, config_.hidden_size, false),
      value_(loader, "value", config_.hidden_size, config_.hidden_size, false),
      output_(loader, "output", config_.hidden_size, config_.hidden_size, false),
      norm_weight_(take_vector(loader, "ln_x.weight", config_.hidden_size)),
      norm_bias_(take_vector(loader, "ln_x.bias", config_.hidden_size)) {
  if (config_.gate) {
    mix_g_ = take_mix(loader, config_.mix_g, config_.hidden_size, !config_.data_dependent);
    gate_.emplace(loader, "gate", config_.hidden_size, config_.hidden_size, false);
  }
  if (config_.data_dependent) {
    load_own_mixes(loader);
  } else {
    for (float& value : decay_) value = std::exp(-std::exp(value));
  }
  loader.config().register_layer(*this);
}

void Rwkv6TimeMix::load_own_mixes(WeightLoader& loader) {
  const int64_t hidden = config_.hidden_size;
  mix_x_ = take_mix(loader, "time_maa_x", hidden, false);
  mix_w_ = take_mix(loader, "time_maa_w", hidden, false);
  const std::optional<Shape> stored = loader.shape_of("time_maa_w2");
  const int64_t rank = stored && stored->rank() == 3 ? (*stored)[1] : 1;
  mix_down_ = transposed_linear(loader, "time_maa_w1", hidden, kMixes * rank);
  const Shape expected{kMixes, rank, hidden};
  const TensorView up = loader.take("time_maa_w2", expected);
  for (int64_t j = 0; j < kMixes; ++j) {
    TensorView part = up;
    part.data += dtype_bytes(up.dtype, j * up.strides[0]);
    part.shape = Shape{rank, hidden};
    part.strides = Shape{up.strides[1], up.strides[2]};
    mix_up_.push_back(transposed_linear(loader, part, stored == expected));
  }
  decay_lora_ = RwkvLora::transposed(loader, "time_decay_w1", "time_decay_w2", {}, hidden, hidden, WkvMap::kTanh);
}

std::vector<Shape> Rwkv6TimeMix::get_state_shape() const {
  return with_state_scales(std::vector{Shape{config_.hidden_size}, Shape{config_.num_heads, head_dim(), head_dim()}},
                           get_state_dtype());
}

std::vector<DType> Rwkv6TimeMix::get_state_dtype() const {
  return with_state_scales({conv_state_dtype(engine_config_), recurrent_state_dtype(engine_config_)});
}

void Rwkv6TimeMix::mix(const ForwardBatch& batch, const float* x, const float* delta, const Mixed& mixed) const {
  const int64_t tokens = batch.num_tokens(), hidden = config_.hidden_size;
  TokenMixArgs args;
  args.x = x;
  args.delta = delta;
  args.tokens = tokens;
  args.cols = hidden;
  const float* mu[kMixes] = {mix_w_.data(), mix_k_.data(), mix_v_.data(), mix_r_.data(), mix_g_.data()};
  const int64_t first = config_.data_dependent ? 0 : 1;
  if (config_.data_dependent) {
    float* base = mixed.of[0];  // free until the last call
    args.mu[0] = mix_x_.data();
    args.out[0] = base;
    args.mixes = 1;
    token_mix()(args, batch);
    const int64_t width = mix_down_->out_features(), rank = width / kMixes;
    float* narrow = batch.workspace->take<float>(tokens * width);
    mix_down_->forward(batch, base, tokens, narrow);
    wkv_map()(WkvMapArgs{WkvMap::kTanh, narrow, nullptr, narrow, tokens, width}, batch);
    for (int64_t j = 0; j < kMixes; ++j) {
      float* own = batch.workspace->take<float>(tokens * hidden);
      mix_up_[static_cast<size_t>(j)].forward(batch, narrow + j * rank, width, tokens, own, hidden);
      args.dynamic[j] = own;
    }
  }
  const int64_t last = config_.gate ? kMixes : kMixes - 1;
  args.mixes = last - first;
  for (int64_t j = first; j < last; ++j) {
    args.mu[j - first] = mu[j];
    args.out[j - first] = mixed.of[j];
  }
  token_mix()(args, batch);
}

void Rwkv6TimeMix::forward(const ForwardBatch& batch, const float* x, float* y, float*) {
  const int64_t tokens = batch.num_tokens(), hidden = config_.hidden_size;
  const RecurrentStep step(*this, batch, {hidden, hidden * head_dim()});
  WorkspaceScope scope(*batch.workspace);
  const auto take = [&] { return batch.workspace->take<float>(tokens * hidden); };
  float* delta = take();
  Mixed mixed{};
  for (float*& values : mixed.of) values = take();
  float *w = take(), *k = take(), *v = take(), *r = take(), *gate = take();
  step.token_shift(x, hidden, 0, delta);
  mix(batch, x, delta, mixed);
  key_.forward(batch, mixed.of[1], tokens, k);
  value_.forward(batch, mixed.of[2], tokens, v);
  receptance_.forward(batch, mixed.of[3], tokens, r);
  if (gate_) gate_->forward(batch, mixed.of[4], tokens, gate);
  if (config_.data_dependent) {
    decay_lora_->forward(batch, mixed.of[0], w);
    wkv_map()(WkvMapArgs{WkvMap::kExpNegExp, w, decay_.data(), w, tokens, hidden}, batch);
  }
  float* out = mixed.of[1];
  step.each([&](const RecurrentRows& rows) {
    const int64_t at = rows.first_token * hidden;
    Wkv6Args args;
    args.r = r + at;
    args.w = config_.data_dependent ? w + at : decay_.data();
    args.w_stride = config_.data_dependent ? hidden : 0;
    args.k = k + at;
    args.v = v + at;
    args.u = first_.data();
    args.y = out + at;
    const StagedState state = step.stage(rows, 1);
    args.state = state.slots();
    args.exports = state.exports();
    args.query_start_loc = rows.query_start_loc;
    args.rows = rows.rows;
    args.num_heads = config_.num_heads;
    args.head_dim = head_dim();
    wkv6()(args, batch);
    state.write_back();
  });
  step.zero_padding(out, hidden);
  HeadNormArgs norm;
  norm.x = norm.y = out;
  norm.weight = norm_weight_.data();
  norm.bias = norm_bias_.data();
  norm.eps = static_cast<float>(config_.norm_eps);
  norm.gate = gate;
  norm.gate_stride = hidden;
  norm.gate_kind = gate_ ? HeadGate::kSilu : HeadGate::kNone;
  norm.tokens = tokens;
  norm.num_heads = config_.num_heads;
  norm.head_dim = head_dim();
  head_norm()(norm, batch);
  output_.forward(batch, out, tokens, y);
}

}  // namespace coluber
