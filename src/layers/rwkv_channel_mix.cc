// SPDX-License-Identifier: Apache-2.0
#include "layers/rwkv_channel_mix.h"

#include "cache/state_shape.h"
#include "kernels/moe/activation.h"
#include "layers/recurrent_step.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

const RegisterRecurrentBackend kTokenShift("token_shift");

RwkvChannelMixConfig checked(const RwkvChannelMixConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("intermediate size", config.intermediate_size);
  checks.finish("channel mix", loader);
  return config;
}

}  // namespace

std::vector<float> take_mix(WeightLoader& loader, std::string_view name, int64_t size, bool weighs_current) {
  std::vector<float> mix = take_vector(loader, name, size);
  if (weighs_current)
    for (float& value : mix) value = 1.0f - value;
  return mix;
}

RwkvChannelMix::RwkvChannelMix(const RwkvChannelMixConfig& config, WeightLoader loader)
    : RwkvMixer(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      mix_k_(take_mix(loader, config_.mix_k, config_.hidden_size, config_.mix_weighs_current)),
      key_(loader, "key", config_.hidden_size, config_.intermediate_size, false),
      value_(loader, "value", config_.intermediate_size, config_.hidden_size, false) {
  if (!config_.mix_r.empty()) {
    mix_r_ = take_mix(loader, config_.mix_r, config_.hidden_size, config_.mix_weighs_current);
    receptance_.emplace(loader, "receptance", config_.hidden_size, config_.hidden_size, false);
  }
  loader.config().register_layer(*this);
}

std::vector<DType> RwkvChannelMix::get_state_dtype() const { return {conv_state_dtype(engine_config_)}; }

void RwkvChannelMix::forward(const ForwardBatch& batch, const float* x, float* y, float*) {
  const int64_t tokens = batch.num_tokens(), hidden = config_.hidden_size, inner = config_.intermediate_size;
  const RecurrentStep step(*this, batch, {hidden});
  WorkspaceScope scope(*batch.workspace);
  float* delta = batch.workspace->take<float>(tokens * hidden);
  float* mixed_k = batch.workspace->take<float>(tokens * hidden);
  float* mixed_r = receptance_ ? batch.workspace->take<float>(tokens * hidden) : nullptr;
  float* wide = batch.workspace->take<float>(tokens * inner);
  step.token_shift(x, hidden, 0, delta);
  TokenMixArgs mix;
  mix.x = x;
  mix.delta = delta;
  mix.mu[0] = mix_k_.data();
  mix.out[0] = mixed_k;
  mix.mu[1] = mix_r_.data();
  mix.out[1] = mixed_r;
  mix.mixes = receptance_ ? 2 : 1;
  mix.tokens = tokens;
  mix.cols = hidden;
  token_mix()(mix, batch);
  key_.forward(batch, mixed_k, tokens, wide);
  ActivateArgs square;
  square.activation = Activation::kRelu2;
  square.gate_stride = square.out_stride = square.cols = inner;
  square.gate = square.out = wide;
  square.rows = tokens;
  activate()(square, batch);
  value_.forward(batch, wide, tokens, y);
  if (!receptance_) return;
  receptance_->forward(batch, mixed_r, tokens, mixed_k);
  ActivateArgs gate;
  gate.activation = Activation::kSigmoid;
  gate.gate = mixed_k;
  gate.up = y;
  gate.out = y;
  gate.gate_stride = gate.up_stride = gate.out_stride = gate.cols = hidden;
  gate.rows = tokens;
  activate()(gate, batch);
}

}  // namespace coluber
