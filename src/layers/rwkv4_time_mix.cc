// SPDX-License-Identifier: Apache-2.0
#include "layers/rwkv4_time_mix.h"

#include <cmath>

#include "cache/state_shape.h"
#include "kernels/wkv/wkv4.h"
#include "layers/recurrent_step.h"
#include "layers/rwkv_channel_mix.h"
#include "tensor/workspace.h"

namespace coluber {
namespace {

const RegisterRecurrentBackend kBackend("wkv4");

Rwkv4TimeMixConfig checked(const Rwkv4TimeMixConfig& config, const WeightLoader& loader) {
  SizeChecks checks;
  checks.expect_positive("hidden size", config.hidden_size);
  checks.expect_positive("attention hidden size", config.attention_hidden_size);
  checks.finish("RWKV-4 time mix", loader);
  return config;
}

}  // namespace

Rwkv4TimeMix::Rwkv4TimeMix(const Rwkv4TimeMixConfig& config, WeightLoader loader)
    : RwkvMixer(layer_name_of(loader)),
      config_(checked(config, loader)),
      engine_config_(loader.config()),
      mix_k_(take_mix(loader, config_.mix_k, config_.hidden_size, true)),
      mix_v_(take_mix(loader, config_.mix_v, config_.hidden_size, true)),
      mix_r_(take_mix(loader, config_.mix_r, config_.hidden_size, true)),
      decay_(take_vector(loader, "time_decay", config_.attention_hidden_size)),
      first_(take_vector(loader, "time_first", config_.attention_hidden_size)),
      key_(loader, "key", config_.hidden_size, config_.attention_hidden_size, false),
      value_(loader, "value", config_.hidden_size, config_.attention_hidden_size, false),
      receptance_(loader, "receptance", config_.hidden_size, config_.attention_hidden_size, false),
      output_(loader, "output", config_.attention_hidden_size, config_.hidden_size, false) {
  for (float& value : decay_) value = -std::exp(value);
  loader.config().register_layer(*this);
}

std::vector<Shape> Rwkv4TimeMix::get_state_shape() const {
  const Shape inner{config_.attention_hidden_size};
  return {Shape{config_.hidden_size}, inner, inner, inner};
}

std::vector<DType> Rwkv4TimeMix::get_state_dtype() const {
  return {conv_state_dtype(engine_config_), DType::kFloat32, DType::kFloat32, DType::kFloat32};
}

std::vector<std::string> Rwkv4TimeMix::get_state_names() const {
  return {"att_shift", "numerator", "denominator", "maximum"};
}

void Rwkv4TimeMix::forward(const ForwardBatch& batch, const float* x, float* y, float*) {
  const int64_t tokens = batch.num_tokens(), hidden = config_.hidden_size, inner = config_.attention_hidden_size;
  const RecurrentStep step(*this, batch, {hidden, inner, inner, inner});
  WorkspaceScope scope(*batch.workspace);
  const auto take = [&](int64_t width) { return batch.workspace->take<float>(tokens * width); };
  float *delta = take(hidden), *mixed_k = take(hidden), *mixed_v = take(hidden), *mixed_r = take(hidden);
  float *k = take(inner), *v = take(inner), *r = take(inner);
  step.token_shift(x, hidden, 0, delta);
  TokenMixArgs mix{x,      delta, {mix_k_.data(), mix_v_.data(), mix_r_.data()}, {}, {mixed_k, mixed_v, mixed_r}, 3,
                   tokens, hidden};
  token_mix()(mix, batch);
  key_.forward(batch, mixed_k, tokens, k);
  value_.forward(batch, mixed_v, tokens, v);
  receptance_.forward(batch, mixed_r, tokens, r);
  step.each([&](const RecurrentRows& rows) {
    const int64_t at = rows.first_token * inner;
    Wkv4Args args;
    args.r = r + at;
    args.k = k + at;
    args.v = v + at;
    args.decay = decay_.data();
    args.first = first_.data();
    args.y = r + at;
    args.numerator = step.slots(rows, 1);
    args.denominator = step.slots(rows, 2);
    args.maximum = step.slots(rows, 3);
    args.exports = step.exports(rows);
    args.query_start_loc = rows.query_start_loc;
    args.rows = rows.rows;
    args.cols = inner;
    wkv4()(args, batch);
  });
  step.zero_padding(r, inner);
  output_.forward(batch, r, tokens, y);
}

}  // namespace coluber
